"""Load agents from a run folder, a model or an endpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sleuth.agent import methods, protocol
from sleuth.agent.episode import Agent
from sleuth.agent.remote import RemoteAgent, make_message_protocol
from sleuth.agent.stamp import stamp_settings, stamp_weights
from sleuth.agent.tools import Tool, Toolbox, load_tools
from sleuth.config import recipe
from sleuth.config.agent import OUTSIDE, SINGLE, UNSEARCHED, AgentConfig
from sleuth.config.engine import OWN_SERVER_SETTINGS, EngineConfig
from sleuth.config.tree import Config
from sleuth.corpus.questions import CORPUS, TEST, TRAIN
from sleuth.credentials import redact
from sleuth.engines.base import Engine
from sleuth.engines.build import load_engine
from sleuth.engines.remote import Endpoint, served_model
from sleuth.errors import ConfigError, InputError
from sleuth.model.policy import select_device, select_dtype
from sleuth.model.tokens import Tokens
from sleuth.records import Question
from sleuth.retrieval.backends import open_pages, open_retriever, require_ready
from sleuth.retrieval.retriever import NullRetriever, Retriever
from sleuth.runs.run import Run

SEARCHES = "searches.jsonl"  # recorded searches of a run
INDEX_SETTINGS = ("kind", "k1", "b", "stemmer", "encoder", "record")  # fixed when an index is built


def build_agent(
    config: Config,
    engine: Engine,
    tokens: Tokens,
    index: Path,
    recording: Path,
    tools: Sequence[Tool] | None = None,
    retriever: Retriever | None = None,
) -> Agent:
    """Build an agent from an engine and the configured tools and retriever, which are opened unless given."""
    toolbox = build_toolbox(config, index, recording, tools, retriever)
    grammar = protocol.make_protocol(config.agent.protocol, tokens, toolbox.tools)
    return Agent(engine, tokens, grammar, toolbox, config.agent, methods.make_method(config.agent))


def build_toolbox(
    config: Config,
    index: Path,
    recording: Path,
    tools: Sequence[Tool] | None = None,
    retriever: Retriever | None = None,
) -> Toolbox:
    """Build the agent's tools; searches are written to `recording` if `retrieval.record` is set."""
    searches = config.agent.method not in UNSEARCHED and config.has_index
    if retriever is None:
        retriever = open_retriever(config.retrieval, index, recording) if searches else NullRetriever()
    opens_pages = "access" in config.agent.tools or config.retrieval.pages is not None
    pages = open_pages(config.retrieval) if opens_pages else None
    return Toolbox(retriever, config.retrieval.k, pages=pages, tools=tuple(tools or load_tools(config.agent)))


def require_search(config: Config) -> None:
    """Raise InputError if the search server does not respond; call this before loading a model."""
    if config.agent.method not in UNSEARCHED and config.has_index and config.retrieval.replay is None:
        require_ready(config.retrieval.index, config.retrieval.service)


@dataclass(frozen=True, slots=True)
class RunSources:
    """Paths of the corpus, the question files and the index of a run; `corpus` is None if the run has none."""

    corpus: Path | None
    train: tuple[Path, ...]
    test: tuple[Path, ...]
    index: Path

    @classmethod
    def of(cls, config: Config, run: Run) -> "RunSources":
        if config.world is not None:
            world = run.path / "world"
            return cls(world / CORPUS, (world / TRAIN,), (world / TEST,), run.path / "index")
        corpus = None if config.data.corpus is None else Path(config.data.corpus)
        train, test = (tuple(map(Path, config.data.files(name))) for name in ("train", "test"))
        index = config.retrieval.index if config.retrieval.local else None
        return cls(corpus, train, test, Path(index or run.path / "index"))


def run_config(run: Run) -> Config:
    return recipe.restore(run.config_and_inputs()[0])


def latest_checkpoint(run: Run) -> Path:
    if (newest := run.latest()) is None:
        raise InputError(f"{run.path} has no checkpoint yet; continue it with: sleuth train --resume {run.path}")
    return newest


def load_run_agent(run: Run, before: bool = False) -> Agent:
    """Load the agent of a run into the embedded engine, with the newest or the initial weights."""
    spec = _run_spec(run, AgentOptions(before=before), None)
    engine = spec.config.engine
    if engine.is_server:  # the servers that the run was trained with may be gone
        spec = replace(spec, config=spec.config.model_copy(update={"engine": EngineConfig(slots=engine.slots)}))
    return spec.load()


def load_model_agent(model: str, questions: Path, index: str | None, settings: Sequence[str]) -> tuple[Agent, Config]:
    """Load an agent from an untrained model and an index; return the agent and its config."""
    require_effective(settings, ("agent.", "engine.", "retrieval.", "reward."))
    spec = _model_spec(model, AgentOptions(tuple(settings), index), questions)
    return spec.load(), spec.config


def load_agent(source: str, questions: Path, index: str | None, settings: Sequence[str]) -> tuple[Agent, Config, Path]:
    """Load the agent of a run or a model, with its config and weights folder; a run has its own index and settings."""
    if not (Path(source) / "manifest.json").is_file():
        return *load_model_agent(source, questions, index, settings), recipe.resolve_policy(source)
    if index is not None or settings:
        raise ConfigError(f"{source} is a run, which has its own index and settings; remove --index and --set")
    run = Run.open(Path(source))
    return load_run_agent(run), run_config(run), latest_checkpoint(run)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Command-line options for an agent; `before` selects the policy from before training."""

    settings: tuple[str, ...] = ()
    index: str | None = None
    method: str | None = None
    before: bool = False

    @property
    def chosen_method(self) -> str | None:
        """The method given with `--method` or `--set agent.method=...`, if any."""
        return self.method or self.values.get("agent.method")

    @property
    def is_outside(self) -> bool:
        """Whether the settings select an outside agent, which may do without an index."""
        return any(f"agent.{name}" in self.values for name in OUTSIDE)

    @property
    def values(self) -> dict[str, str]:
        pairs = (each.partition("=") for each in self.settings)
        return {key.strip(): value.strip(" '\"") for key, _, value in pairs}


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """A local agent whose weights are not loaded yet; `questions` and `training` are the question files of a run."""

    name: str
    config: Config
    weights: Path
    index: Path
    recording: Path
    questions: tuple[Path, ...] = ()
    training: tuple[Path, ...] = ()
    trained_prompt: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the results, such as a prompt that differs from the training prompt."""
        prompt = self.config.agent.template
        if self.trained_prompt in (None, prompt):
            return ()
        return (f"The prompt is {prompt!r}; the run was trained with {self.trained_prompt!r}.",)

    @property
    def concurrency(self) -> int:
        return self.config.concurrency

    def load(self, shots: Sequence[Question] = (), *, lockstep: bool | None = None) -> Agent:
        """Load the weights and build the agent; `shots` are prompt examples, `lockstep` overrides its setting.

        Raises ConfigError for an outside agent, which only training and evaluation can run.
        """
        if self.config.agent.is_outside:
            raise ConfigError(
                f"{self.name} has an outside agent ({self.config.agent.source}), which answers questions in its own "
                "program: evaluate it with `sleuth evaluate`, or export the model with `sleuth export`, serve it with "
                "vLLM, and let your agent call that server"
            )
        method = methods.make_method(self.config.agent, shots)
        require_search(self.config)
        engine, tokens = load_engine(self.config, self.weights, lockstep=lockstep)
        return replace(build_agent(self.config, engine, tokens, self.index, self.recording), method=method)

    def stamp(self) -> Mapping[str, Any]:
        """Return everything that the answers depend on, except the questions."""
        device, name = select_device(), self.config.agent.protocol
        tokens = None if name in ("tags", "rlinf") else Tokens.load(self.weights)
        grammar = protocol.make_protocol(name, tokens, load_tools(self.config.agent))
        model = {
            "sha256": stamp_weights(self.weights),
            "dtype": str(select_dtype(self.config.model, device)).removeprefix("torch."),
            "on": self.config.engine.kind if self.config.engine.is_server else device.type,
        }
        return {"model": model, **stamp_settings(self.config, self.index, grammar)}


@dataclass(frozen=True, slots=True)
class RemoteAgentSpec:
    """An agent whose model runs on a server; `served` is the server's description of the model."""

    name: str
    config: Config
    endpoint: Endpoint
    index: Path
    served: Mapping[str, Any] | None
    questions: tuple[Path, ...] = ()
    training: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def concurrency(self) -> int:
        return self.config.agent.concurrency or self.config.engine.slots

    def load(self, shots: Sequence[Question] = ()) -> RemoteAgent:
        require_search(self.config)
        tools = build_toolbox(self.config, self.index, Path(SEARCHES))
        return RemoteAgent.of(self.endpoint, tools, self.config.agent, shots)

    def stamp(self) -> Mapping[str, Any]:
        """Return everything that the answers depend on, except the questions, as reported by the server."""
        model = {"url": redact(self.endpoint.base), "name": self.endpoint.model, "served": self.served}
        grammar = make_message_protocol(self.config.agent.protocol, load_tools(self.config.agent))
        return {"model": model, **stamp_settings(self.config, self.index, grammar)}


def describe_agent(name: str, options: AgentOptions, questions: Path | None) -> AgentSpec:
    """Describe the agent of a run folder, a model folder or a hub name, without loading its weights."""
    require_effective(options.settings, ("agent.", "engine.", "gateway.", "retrieval.", "model.dtype"))
    folder = Path(name)
    if (folder / "manifest.json").is_file():
        return _run_spec(Run.open(folder), options, questions)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(
            f"{name} is neither a run folder (no manifest.json) nor a model folder (no config.json); give one of them"
        )
    return _model_spec(name, options, questions)


def describe_remote_agent(endpoint: Endpoint, options: AgentOptions, questions: Path | None) -> RemoteAgentSpec:
    """Describe the agent of a served model; raises InputError if the server does not respond or lacks the model."""
    require_effective(options.settings, ("agent.", "retrieval.", "engine.slots"))
    if options.before:
        raise ConfigError("--before has no effect with a server address; remove it")
    config = _compose(_external_tree(endpoint.url, "an address", options, questions), options)
    model = served_model(endpoint)
    limit = (model or {}).get("max_model_len")
    if isinstance(limit, int) and config.agent.context_tokens > limit:
        raise ConfigError(
            f"agent.context_tokens = {config.agent.context_tokens} exceeds the limit of {endpoint.model} at this "
            f"server; give --set agent.context_tokens={limit}"
        )
    return RemoteAgentSpec(endpoint.model, config, endpoint, Path(options.index or "index"), model)


def require_effective(settings: Sequence[str], prefixes: tuple[str, ...]) -> None:
    """Raise ConfigError for settings outside these groups, which would have no effect."""
    for setting in settings:
        if not setting.strip().startswith(prefixes):
            raise ConfigError(f"--set {setting} has no effect here; only settings of {', '.join(prefixes)} do")


def _run_spec(run: Run, options: AgentOptions, questions: Path | None) -> AgentSpec:
    config = _without_training_servers(run_config(run), options)
    trained_prompt = config.agent.template
    sources = RunSources.of(config, run)
    index = str(sources.index) if config.retrieval.local else str(config.retrieval.index)
    if options != AgentOptions(before=options.before):
        config = _apply_options(config, options, index, (questions,) if questions else sources.test)
    # Questions to a finished run are not recorded.
    config = config.model_copy(update={"retrieval": config.retrieval.model_copy(update={"record": False})})
    return AgentSpec(
        name=run.path.resolve().name + (" before training" if options.before else ""),
        config=config,
        weights=recipe.resolve_policy(config.model.policy) if options.before else latest_checkpoint(run),
        index=Path(options.index or index),
        recording=run.path / SEARCHES,
        questions=sources.test,
        training=sources.train,
        trained_prompt=trained_prompt,
    )


def _model_spec(name: str, options: AgentOptions, questions: Path | None) -> AgentSpec:
    weights = recipe.resolve_policy(name)
    if options.before:
        raise ConfigError("--before needs a run folder, and this is a model folder; remove it")
    tree = {"model": {"policy": name}, **_external_tree(name, "a model", options, questions)}
    label = weights.resolve().name if Path(name).exists() else name
    return AgentSpec(label, _compose(tree, options), weights, Path(options.index or "index"), Path(SEARCHES))


def _external_tree(name: str, kind: str, options: AgentOptions, questions: Path | None) -> dict[str, Any]:
    """Return the data and retrieval settings for a model that has no run."""
    if questions is None:
        raise InputError(f"{name} is {kind} without questions; name a question file with --suite")
    if options.index is None and options.chosen_method not in UNSEARCHED and not options.is_outside:
        raise ConfigError(f"{name} is {kind} without an index; name one with --index")
    return {
        "data": {"train": str(questions), "test": str(questions)},
        "retrieval": {} if options.index is None else {"index": options.index},
    }


def _without_training_servers(config: Config, options: AgentOptions) -> Config:
    """Remove the addresses of the training servers, which may now serve another run."""
    if not config.engine.is_server:
        return config
    dropped = {"url", "weights", "exchange", "in_flight"}
    if "engine.kind" in options.values:
        dropped |= {"kind", "command"}
    if "engine.url" in options.values:
        dropped |= set(OWN_SERVER_SETTINGS)
    kept = config.engine.model_dump(exclude_defaults=True, exclude=dropped)
    return config.model_copy(update={"engine": EngineConfig(**kept)})


def _apply_options(config: Config, options: AgentOptions, index: str, questions: Sequence[Path]) -> Config:
    """Apply the command-line options to a run's settings; the run's index is reused."""
    tree: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    tree.pop("world", None)
    paths = [str(path) for path in questions]
    files = paths if len(paths) > 1 else paths[0]
    tree["data"] = {"train": files, "test": files}
    retrieval = {name: value for name, value in tree.get("retrieval", {}).items() if name not in INDEX_SETTINGS}
    if options.index is not None:
        retrieval.pop("replay", None)
    tree["retrieval"] = retrieval | ({} if "replay" in retrieval else {"index": options.index or index})
    return _compose(tree, options)


def _compose(tree: dict[str, Any], options: AgentOptions) -> Config:
    """Apply the options; a run's prompt is kept unless the chosen method has its own default prompt."""
    method = options.chosen_method
    if method in UNSEARCHED and options.index is not None:
        raise ConfigError(f"--index has no effect with the method {method}, which does not search; leave it out")
    if method is not None:
        agent = tree.get("agent", {})
        unused = ["searches"] if method in SINGLE else []
        unused += ["observation_tokens"] if method in UNSEARCHED else []
        earlier, chosen = (AgentConfig(method=each).template for each in (agent.pop("method", "search"), method))
        unused += ["prompt"] if earlier != chosen else []
        for name in unused:
            agent.pop(name, None)
    if method in UNSEARCHED:
        tree["retrieval"] = {}
    override = [] if options.method is None else [f'agent.method="{options.method}"']
    return recipe.compose(tree, [*options.settings, *override])
