"""From a config to the parts of a run, each built once."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from sleuth.agent import methods, protocol
from sleuth.agent.episode import Agent
from sleuth.agent.tools import Toolbox
from sleuth.agent.user_tools import load_tools
from sleuth.config import recipe
from sleuth.config.agent import UNSEARCHED
from sleuth.config.hooks import IMPORT, source_hash
from sleuth.config.retrieval import BM25Settings, IndexPlan, RetrievalConfig
from sleuth.config.train import TrackConfig
from sleuth.config.tree import Config
from sleuth.corpus import questions
from sleuth.credentials import redact
from sleuth.engines.base import Engine
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.schedule import EngineStats
from sleuth.errors import InputError, UserError
from sleuth.evaluate.folder import flatten
from sleuth.model.tokens import Tokens
from sleuth.records import Question
from sleuth.retrieval import index, manifest
from sleuth.retrieval.backends import open_pages, open_retriever, require_ready
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.retriever import NullRetriever, Pages
from sleuth.reward.answers import warn_wordless
from sleuth.reward.rubric import Rubric
from sleuth.runs import checksums
from sleuth.runs.checksums import code_hash, code_version, fingerprint
from sleuth.runs.run import Run, step_of
from sleuth.synthesis.world.world import CORPUS, TEST, TRAIN, World, write_world
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress
from sleuth.train.engines import Lockstep, learning
from sleuth.train.learners import learner_of
from sleuth.train.observer import RunObserver
from sleuth.train.publish import Publisher
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.rollout import QuestionStream, RolloutSampler, overlap_warning
from sleuth.train.saver import Saver
from sleuth.train.step import Learner
from sleuth.train.trackers import Trackers

SEARCHES = "searches.jsonl"
# How a file that a recipe expects comes to be.
MAKERS = {
    "data.corpus": "sleuth data download",
    "data.train": "sleuth data prepare",
    "data.test": "sleuth data prepare",
    "retrieval.index": "sleuth index build",
}


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
    engine: Engine
    publisher: Publisher
    sampler: RolloutSampler
    held_out: list[Question]
    saver: Saver
    trackers: Trackers
    changes: tuple[str, ...] = ()
    versions: Mapping[str, Any] | None = None  # that make the run from here on, where others made what is there

    @property
    def agent(self) -> Agent:
        return self.sampler.agent

    @property
    def rubric(self) -> Rubric:
        return self.sampler.rubric

    @property
    def ranks(self) -> Ranks:
        return self.learner.ranks

    def save(self, progress: Progress) -> None:
        """Begins to write a checkpoint."""
        critic = self.learner.critic
        with self.learner.timer.time("save"):
            self.saver.save(
                self.learner.policy, self.learner.optimiser, progress, None if critic is None else critic.optimiser
            )

    def verify(self, folder: Path) -> bool:
        """Refuses a damaged checkpoint on every rank, after the first has read it; False where it has no checksums."""
        found: bool | str = True
        if self.ranks.rank == 0:
            try:
                found = checksums.verify_checkpoint(folder, resuming=True)
            except InputError as error:
                found = str(error)
        ((found,), *_) = self.ranks.gather([found], "the checksums of a checkpoint")
        if isinstance(found, str):
            raise InputError(found)
        return found

    def restore(self, folder: Path) -> Progress:
        """Puts a checkpoint in place."""
        learner = self.learner
        critic = None if learner.critic is None else learner.critic.optimiser
        return checkpoint.restore(folder, learner.policy, learner.optimiser, rank=self.ranks.rank, critic=critic)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the run folder; when it is let go of, all that was to be written is."""
        with self.run.lock() if self.ranks.rank == 0 else nullcontext(), self.saver, closing(self.trackers):
            yield

    def go_on(self, step: int) -> None:
        """Records what changed since the run was begun, from a step on; what was its end is not any more."""
        self.run.remove_summary()
        if self.versions is not None:
            self.run.record_versions(step, self.versions)
        if self.changes:
            begun = self.run.manifest()
            changed = [*begun.get("changes", []), *map(redact, self.changes)]
            self.run.write_json("manifest.json", {**begun, "config": recipe.resolved(self.config), "changes": changed})


def start(config: Config, folder: Path, observer: RunObserver, ranks: Ranks = ALONE) -> Parts:
    """The parts of a new run; one that cannot start for a fault of its input leaves no folder behind."""
    config = recipe.with_absolute_paths(config)
    run = begin(config, folder) if ranks.rank == 0 else Run(folder)
    ranks.barrier("the run folder")
    try:
        return assemble(config, run, observer, ranks)
    except UserError:
        if ranks.rank == 0:
            shutil.rmtree(run.path)
        raise


def proceed(run: Run, observer: RunObserver, changes: Sequence[str] = (), ranks: Ranks = ALONE) -> Parts:
    """The parts of a run that was interrupted; it goes on only with the inputs it began with."""
    begun, inputs = run.config_and_inputs()
    config = recipe.amend(begun, changes)
    for knob, found in _inputs(config).items():
        if found != inputs.get(knob):
            raise InputError(
                f"{knob} = {found['path']} changed after {run.path} was begun with it; put it back, or begin a new run"
            )
    parts = replace(assemble(config, run, observer, ranks), changes=tuple(changes))
    return replace(parts, versions=_changed_versions(run, config, observer))


def _changed_versions(run: Run, config: Config, observer: RunObserver) -> Mapping[str, Any] | None:
    """The versions that are here now, where they are not those of the run's newest part; says so."""
    before, now = run.current_versions(), versions(config)
    different = [name for name in now if name in before and before[name] != now[name]]
    if not different:
        return None
    newest = run.latest()
    said = "; ".join(_change(name, before[name], now[name]) for name in different)
    observer.log(
        f"from step {0 if newest is None else step_of(newest)} on this run is made by other versions: {said}; "
        "it may differ from an undisturbed run, and manifest.json records each part"
    )
    return now


def _change(name: str, before: Any, now: Any) -> str:
    if name == "functions":
        changed = sorted(knob for knob in {*before, *now} if before.get(knob) != now.get(knob))
        return f"the function of {', '.join(changed)} changed"
    return "the source of Sleuth changed" if name == "code_sha256" else f"{name} {before} is now {now}"


def versions(config: Config) -> dict[str, Any]:
    """What makes the steps of a run beside its settings: the code, the libraries, and functions of the user's own."""
    functions = {
        name: source_hash(value)
        for name, value in flatten(recipe.resolved(config)).items()
        if isinstance(value, str) and value.startswith(IMPORT)
    }
    return {
        "code": code_version(),
        "code_sha256": code_hash(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "functions": functions,
    }


def begin(config: Config, folder: Path) -> Run:
    """A new run folder with its manifest; missing models and files are found before it is made."""
    here = versions(config)
    manifest = {
        "config": recipe.resolved(config),
        **{name: here[name] for name in ("code", "torch", "transformers")},
        "inputs": _inputs(config),
        "parts": [{"step": 0, **here}],
    }
    return Run.create(folder, manifest)


def assemble(config: Config, run: Run, observer: RunObserver, ranks: Ranks = ALONE) -> Parts:
    """Builds or finds each part, what is quickly found wrong first; what a killed run had finished is used again."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    rubric = Rubric(config.reward)
    methods.make_method(config.agent)
    require_search(config)
    learner = learner_of(config, ranks)
    protocol.make_protocol(config.agent.protocol, learner.policy.tokens, load_tools(config.agent))
    sources = sources_of(config, run)
    if ranks.rank == 0:
        _generate(config, run, observer)
        _index(config, sources, observer)
    ranks.barrier("the index")
    learn, held_out = questions.load(sources.train), questions.load(sources.test)[: config.evaluate.questions]
    for told in (overlap_warning(learn, held_out), warn_wordless([*learn, *held_out])):
        if told:
            observer.log(told)
    engine, publisher = learning(config, learner, run.path)
    observer.log(Lockstep.of(config, learner.policy.device.type).line(config.concurrency))
    agent = agent_of(config, engine, learner.policy.tokens, sources.index, run.path / SEARCHES)
    methods.require_prompts(agent, [*learn, *held_out])
    for what, asked in (("training questions", learn), ("held-out questions", held_out)):
        if told := methods.describe_overlong(agent, asked, what):
            observer.log(told)
    stream = QuestionStream(learn, config.train.seed, config.data.shuffle)
    # Where episodes are sampled while a step trains, their ranks meet beside those that train.
    asking = ranks.for_thread() if config.train.mode == "ahead" else ranks
    return Parts(
        config=config,
        run=run,
        learner=learner,
        engine=engine,
        publisher=publisher,
        sampler=RolloutSampler(agent, rubric, stream, config, asking, _tally(engine)),
        held_out=held_out,
        # What a run began with is the last that it can be rolled back to.
        saver=Saver(run, config.train.keep, ranks, always=(0,)),
        trackers=Trackers.of(config.track if ranks.rank == 0 else TrackConfig(), run, observer),
    )


def _tally(engine: Engine) -> Callable[[], EngineStats]:
    """What an engine tells of its work, where it does."""
    return (lambda: engine.stats) if isinstance(engine, PagedEngine) else EngineStats


def index_plan(config: RetrievalConfig) -> IndexPlan:
    """What a run builds of its corpus."""
    words = BM25Settings(k1=config.k1, b=config.b, stemmer=config.stemmer)
    return IndexPlan.of(config.kind, words, None if config.kind == "bm25" else encoder_settings(config.encoder))


def agent_of(config: Config, engine: Engine, tokens: Tokens, folder: Path, recording: Path) -> Agent:
    """The agent of a run: an engine, and what it searches, recorded where that is asked for."""
    toolbox = tool_of(config, folder, recording)
    grammar = protocol.make_protocol(config.agent.protocol, tokens, toolbox.tools)
    return Agent(engine, tokens, grammar, toolbox, config.agent, methods.make_method(config.agent))


def require_search(config: Config) -> None:
    """Raises InputError where the agent searches through a server that does not answer; costs less than any model."""
    if config.agent.method not in UNSEARCHED and config.retrieval.replay is None:
        require_ready(config.retrieval.index, config.retrieval.service)


def tool_of(config: Config, folder: Path, recording: Path) -> Toolbox:
    """What an agent searches, where it does, and opens."""
    unsearched = config.agent.method in UNSEARCHED
    retriever = NullRetriever() if unsearched else open_retriever(config.retrieval, folder, recording)
    return Toolbox(retriever, config.retrieval.k, pages=_pages(config), tools=load_tools(config.agent))


def _pages(config: Config) -> Pages | None:
    """What the agent opens by url, where its protocol does so."""
    wanted = "access" in config.agent.tools or config.retrieval.pages is not None
    return open_pages(config.retrieval) if wanted else None


def sources_of(config: Config, run: Run) -> Sources:
    """Where a run's corpus, questions and index are, or will be."""
    if config.world is not None:
        world = run.path / "world"
        corpus, train, test = (world / name for name in (CORPUS, TRAIN, TEST))
        return Sources(corpus, train, test, run.path / "index")
    return _own_sources(config, run)


def _own_sources(config: Config, run: Run) -> Sources:
    files, named = config.data, config.retrieval.index if config.retrieval.local else None
    assert files.train is not None and files.test is not None  # noqa: S101, PT018  config refuses a run without them
    corpus = None if files.corpus is None else Path(files.corpus)
    return Sources(corpus, Path(files.train), Path(files.test), Path(named or run.path / "index"))


def _generate(config: Config, run: Run, observer: RunObserver) -> None:
    """Writes the world of a run that has one, unless it is there."""
    folder = run.path / "world"
    if config.world is not None and not folder.exists():
        observer.begin("generating the world", 1)
        world = World(config.world.passages, config.world.seed)
        write_world(world, folder, config.world.questions, config.evaluate.questions)


def _index(config: Config, sources: Sources, observer: RunObserver) -> None:
    """Builds the index of a run's own corpus, unless it is there."""
    if sources.corpus is not None and config.retrieval.replay is None and not sources.index.exists():
        observer.begin("indexing", 1)
        index.build(sources.corpus, sources.index, index_plan(config.retrieval), device=config.retrieval.device)


def _inputs(config: Config) -> Mapping[str, Mapping[str, Any]]:
    """The files a run is made from, each named by its contents."""
    named = {
        "data.corpus": config.data.corpus,
        "data.train": config.data.train,
        "data.test": config.data.test,
        "retrieval.index": config.retrieval.index if config.retrieval.local else None,
        "retrieval.replay": config.retrieval.replay,
        "retrieval.pages": config.retrieval.pages,
    }
    files = {knob: Path(path) for knob, path in named.items() if path is not None}
    for knob, path in files.items():
        if not path.exists():
            made = f"make it with {MAKERS[knob]} (docs/recipes.md), " if knob in MAKERS else ""
            raise InputError(f"{knob} = {path} does not exist; {made}correct the recipe, or give another with --set")
    # Last, for a model may have to be fetched.
    policies = {"model.policy": config.model.policy, "algorithm.critic.policy": config.algorithm.critic.policy}
    models = {knob: (policy, recipe.resolve_policy(policy)) for knob, policy in policies.items() if policy is not None}
    paths = models | {knob: (str(path), path) for knob, path in files.items()}
    return {knob: {"path": given, "sha256": _hash(knob, path)} for knob, (given, path) in paths.items()}


def _hash(knob: str, path: Path) -> str:
    # The vectors of an index may be tens of gigabytes; its manifest names what it was made from by their hashes.
    return manifest.fingerprint(path) if knob == "retrieval.index" else fingerprint(path)
