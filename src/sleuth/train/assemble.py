"""From a config to the parts of a run, each built once."""

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
from sleuth.config import Config
from sleuth.corpus import questions
from sleuth.corpus.world import folder as world_folder
from sleuth.corpus.world.world import World
from sleuth.engines.paged.engine import Paged
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.retrieval import index
from sleuth.reward.rubric import Rubric
from sleuth.runs import Run, code_version, fingerprint
from sleuth.train.policy import Policy
from sleuth.train.questions import QuestionStream
from sleuth.train.step import Learner
from sleuth.train.watch import Watch


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the questions and the index of a run are."""

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


def begin(config: Config, folder: Path) -> Run:
    """A new run folder with its manifest; bad settings and missing models are found before it is made."""
    policy = recipe.resolve_policy(config.model.policy)
    for path in (config.data.corpus, config.data.train, config.data.test, config.retrieval.index):
        if path is not None and not Path(path).exists():
            raise InputError(f"{path} does not exist; correct the recipe, or give another with --set")
    return Run.create(folder, _manifest(config, policy))


def assemble(config: Config, run: Run, watch: Watch) -> Parts:
    """Builds or finds each part; a part that a killed run had finished is used again."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    sources = _sources(config, run, watch)
    folder = recipe.resolve_policy(config.model.policy)
    policy = Policy.load(folder, device)
    reference = Policy.load(folder, device) if config.algorithm.kl.place != "none" else None
    optimiser = torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.train.learning_rate,
        betas=(0.9, 0.999),
        weight_decay=config.train.weight_decay,
    )
    engine, agent = agent_of(config, policy, sources.index)
    learn = questions.load(sources.train)
    return Parts(
        config=config,
        run=run,
        learner=Learner(policy, optimiser, reference, config.algorithm, config.train),
        engine=engine,
        agent=agent,
        rubric=Rubric(config.reward),
        stream=QuestionStream(learn, config.train.questions, config.train.seed, config.data.shuffle),
        held_out=questions.load(sources.test)[: config.evaluate.questions],
    )


def agent_of(config: Config, policy: Policy, folder: Path) -> tuple[Paged, Agent]:
    """The agent of a run: the policy in the embedded engine, with its index to search."""
    engine = Paged(
        policy.model,
        policy.tokens,
        slots=config.engine.slots,
        context=config.agent.context_tokens + 1,
        lockstep=True,
    )
    tool = SearchTool(index.load(folder), config.retrieval.k)
    return engine, Agent(engine, policy.tokens, protocol.named(config.agent.protocol), tool, config.agent)


def sources_of(config: Config, run: Run) -> Sources:
    """Where a run's questions and index are, or will be."""
    if config.world is not None:
        world = run.path / "world"
        return Sources(world / "questions.train.jsonl", world / "questions.test.jsonl", run.path / "index")
    train, test = config.data.train, config.data.test
    assert train is not None and test is not None  # noqa: S101, PT018  config refuses a run without them
    return Sources(Path(train), Path(test), Path(config.retrieval.index or run.path / "index"))


def _sources(config: Config, run: Run, watch: Watch) -> Sources:
    sources = sources_of(config, run)
    corpus = config.data.corpus
    if config.world is not None:
        corpus = str(run.path / "world" / "corpus.jsonl")
        if not Path(corpus).exists():
            watch.begin("generating the world", 1)
            world = World(config.world.passages, config.world.seed)
            world_folder.write(world, run.path / "world", config.world.questions, config.evaluate.questions)
    if corpus is not None and not sources.index.exists():
        watch.begin("indexing", 1)
        index.build(Path(corpus), sources.index, config.retrieval.k1, config.retrieval.b)
    return sources


def _manifest(config: Config, policy: Path) -> Mapping[str, Any]:
    return {
        "kind": "run",
        "config": recipe.resolved(config),
        "code": code_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": {"folder": str(config.model.policy), "sha256": fingerprint(policy)},
        "sources": {
            name: {"path": path, "sha256": fingerprint(Path(path))}
            for name, path in (
                ("train", config.data.train),
                ("test", config.data.test),
                ("index", config.retrieval.index),
            )
            if path is not None
        },
    }
