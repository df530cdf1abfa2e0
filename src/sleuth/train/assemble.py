"""From a config to the parts of a run, each built once."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from sleuth import recipe
from sleuth.agent import protocol
from sleuth.agent.episode import Agent
from sleuth.agent.tools import SearchTool
from sleuth.config import Config, RetrievalConfig
from sleuth.corpus import questions
from sleuth.corpus.world import folder as world_folder
from sleuth.corpus.world.world import World
from sleuth.engines.paged.engine import Paged
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.records import Question
from sleuth.retrieval import index, manifest
from sleuth.retrieval.opened import opened
from sleuth.retrieval.settings import BM25Settings, Plan
from sleuth.retrieval.vectors.families import settings_for
from sleuth.reward.rubric import Rubric
from sleuth.runs import Run, code_version, fingerprint
from sleuth.train.policy import Policy
from sleuth.train.questions import QuestionStream
from sleuth.train.step import Learner
from sleuth.train.watch import Watch

SEARCHES = "searches.jsonl"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the corpus, the questions and the index of a run are; an index of the user's own names its corpus."""

    corpus: Path | None
    train: Path
    test: Path
    index: Path


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the loop needs."""

    config: Config
    run: Run
    learner: Learner
    engine: Paged
    agent: Agent
    rubric: Rubric
    stream: QuestionStream
    held_out: list[Question]


def start(config: Config, folder: Path, watch: Watch) -> Parts:
    """The parts of a new run; one that cannot start for a fault of its input leaves no folder behind."""
    config = recipe.anchored(config)
    run = begin(config, folder)
    try:
        return assemble(config, run, watch)
    except UserError:
        shutil.rmtree(run.path)
        raise


def proceed(run: Run, watch: Watch) -> Parts:
    """The parts of a run that was interrupted; it goes on only with the inputs it began with."""
    config = recipe.restore(run.manifest()["config"])
    begun_with = run.manifest()["inputs"]
    for knob, found in _inputs(config).items():
        if found != begun_with[knob]:
            raise InputError(
                f"{knob} = {found['path']} changed after {run.path} was begun with it; put it back, or begin a new run"
            )
    return assemble(config, run, watch)


def begin(config: Config, folder: Path) -> Run:
    """A new run folder with its manifest; missing models and files are found before it is made."""
    manifest = {
        "config": recipe.resolved(config),
        "code": code_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "inputs": _inputs(config),
    }
    return Run.create(folder, manifest)


def assemble(config: Config, run: Run, watch: Watch) -> Parts:
    """Builds or finds each part, what is quickly found wrong first; what a killed run had finished is used again."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    rubric = Rubric(config.reward)
    learner = _learner(config, device)
    protocol.named(config.agent.protocol)
    sources = sources_of(config, run)
    _generate(config, run, watch)
    learn, held_out = questions.load(sources.train), questions.load(sources.test)
    if sources.corpus is not None and config.retrieval.replay is None and not sources.index.exists():
        watch.begin("indexing", 1)
        index.build(sources.corpus, sources.index, index_plan(config.retrieval), device=config.retrieval.device)
    engine, agent = agent_of(config, learner.policy, sources.index, run.path / SEARCHES)
    return Parts(
        config=config,
        run=run,
        learner=learner,
        engine=engine,
        agent=agent,
        rubric=rubric,
        stream=QuestionStream(learn, config.train.questions, config.train.seed, config.data.shuffle),
        held_out=held_out[: config.evaluate.questions],
    )


def index_plan(config: RetrievalConfig) -> Plan:
    """What a run builds of its corpus."""
    words = BM25Settings(k1=config.k1, b=config.b, stemmer=config.stemmer)
    return Plan.of(config.kind, words, None if config.kind == "bm25" else settings_for(config.encoder))


def agent_of(config: Config, policy: Policy, folder: Path, recording: Path) -> tuple[Paged, Agent]:
    """The agent of a run: the policy in the embedded engine, and what it searches, recorded where that is asked for."""
    engine = Paged(
        policy.model,
        policy.tokens,
        slots=config.engine.slots,
        context=config.agent.context_tokens + 1,
        memory=config.engine.memory,
        prefill_tokens=config.engine.prefill_tokens,
        keep_stale=config.engine.stale_cache == "keep",
        # Bit for bit the same run again is a promise for CPUs only, and waiting for everyone is dear on a GPU.
        lockstep=policy.device.type == "cpu",
    )
    tool = SearchTool(opened(config.retrieval, folder, recording), config.retrieval.k)
    return engine, Agent(engine, policy.tokens, protocol.named(config.agent.protocol), tool, config.agent)


def sources_of(config: Config, run: Run) -> Sources:
    """Where a run's corpus, questions and index are, or will be."""
    if config.world is not None:
        world = run.path / "world"
        corpus, train, test = (world / name for name in (world_folder.CORPUS, world_folder.TRAIN, world_folder.TEST))
        return Sources(corpus, train, test, run.path / "index")
    return _own_sources(config, run)


def _own_sources(config: Config, run: Run) -> Sources:
    files, named = config.data, config.retrieval.index if config.retrieval.local else None
    assert files.train is not None and files.test is not None  # noqa: S101, PT018  config refuses a run without them
    corpus = None if files.corpus is None else Path(files.corpus)
    return Sources(corpus, Path(files.train), Path(files.test), Path(named or run.path / "index"))


def _generate(config: Config, run: Run, watch: Watch) -> None:
    """Writes the world of a run that has one, unless it is there."""
    folder = run.path / "world"
    if config.world is not None and not folder.exists():
        watch.begin("generating the world", 1)
        world = World(config.world.passages, config.world.seed)
        world_folder.write(world, folder, config.world.questions, config.evaluate.questions)


def _learner(config: Config, device: torch.device) -> Learner:
    folder = recipe.resolve_policy(config.model.policy)
    policy = Policy.load(folder, device)
    known, asked = policy.model.config.max_position_embeddings, config.agent.context_tokens
    if asked > known:
        raise ConfigError(f"agent.context_tokens = {asked} is more than the {known} positions of the model; lower it")
    reference = Policy.load(folder, device) if config.algorithm.kl.place != "none" else None
    optimiser = torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.train.learning_rate,
        betas=(0.9, 0.999),
        weight_decay=config.train.weight_decay,
    )
    return Learner(policy, optimiser, reference, config.algorithm, config.train)


def _inputs(config: Config) -> Mapping[str, Mapping[str, Any]]:
    """The files a run is made from, each named by its contents."""
    policy = config.model.policy
    named = {
        "data.corpus": config.data.corpus,
        "data.train": config.data.train,
        "data.test": config.data.test,
        "retrieval.index": config.retrieval.index if config.retrieval.local else None,
        "retrieval.replay": config.retrieval.replay,
    }
    paths = {"model.policy": (policy, recipe.resolve_policy(policy))}
    paths |= {knob: (path, Path(path)) for knob, path in named.items() if path is not None}
    for knob, (given, path) in paths.items():
        if not path.exists():
            raise InputError(f"{knob} = {given} does not exist; correct the recipe, or give another with --set")
    return {knob: {"path": given, "sha256": _hash(knob, path)} for knob, (given, path) in paths.items()}


def _hash(knob: str, path: Path) -> str:
    # The vectors of an index may be tens of gigabytes; its manifest names what it was made from by their hashes.
    return manifest.fingerprint(path) if knob == "retrieval.index" else fingerprint(path)
