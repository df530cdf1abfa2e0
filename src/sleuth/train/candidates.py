"""What is evaluated: the model of a run or of a folder, with its settings, described before it is loaded."""

import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sleuth.agent import methods, prompts, protocol
from sleuth.agent.episode import Agent
from sleuth.agent.protocol import Protocol
from sleuth.agent.user_tools import load_tools
from sleuth.config import recipe
from sleuth.config.agent import SINGLE, UNSEARCHED, AgentConfig
from sleuth.config.engine import OWN_SERVER_SETTINGS, EngineConfig
from sleuth.config.hooks import IMPORT, import_function
from sleuth.config.retrieval import RetrievalConfig, backend_of
from sleuth.config.tree import Config
from sleuth.credentials import token_from_env
from sleuth.errors import ConfigError, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Question
from sleuth.retrieval.backends import STARTUP_TIMEOUT, backend_identity
from sleuth.runs.checksums import fingerprint
from sleuth.runs.run import Run
from sleuth.train import finished
from sleuth.train.assemble import SEARCHES, agent_of, require_search, sources_of
from sleuth.train.engines import standing
from sleuth.train.learners import device_of, dtype_of
from sleuth.train.ranks import ALONE

TABLES = ("agent.", "engine.", "retrieval.", "model.dtype")
NAMED = ("protocol", "method", "prompt")  # settings of the agent that a stamp names by themselves
NEWER = ("tools", "tool_limits", "turns")
UNSTAMPED = ("concurrency",)  # and those that its answers do not depend on
BUILT = ("kind", "k1", "b", "stemmer", "encoder", "record")  # settings of an index that is there already


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for on the command line: changed settings, another index, a method."""

    settings: tuple[str, ...] = ()
    index: str | None = None
    method: str | None = None
    before: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to evaluate; `index` is where the index of a run lies, `questions` its held-out ones.

    `trained_prompt` is the prompt of a run's training.
    """

    name: str
    config: Config
    weights: Path
    index: Path
    recording: Path
    questions: Path | None = None
    training: Path | None = None
    trained_prompt: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its figures must know: a run that is asked by another prompt than it was trained with."""
        prompt = self.config.agent.template
        if self.trained_prompt in (None, prompt):
            return ()
        return (f"The prompt is {prompt!r}; the run was trained with {self.trained_prompt!r}.",)

    @property
    def concurrency(self) -> int:
        """Questions in flight at most."""
        return self.config.concurrency

    def agent(self, shots: Sequence[Question], *, lockstep: bool | None = None) -> Agent:
        """The model in its engine, with what it searches; `lockstep` decides in place of the settings, where given."""
        method = methods.make_method(self.config.agent, shots)
        require_search(self.config)
        engine, tokens = standing(self.config, self.weights, lockstep=lockstep)
        return replace(agent_of(self.config, engine, tokens, self.index, self.recording), method=method)

    def stamp(self) -> Mapping[str, Any]:
        """All that its answers depend on but the questions: files by their contents."""
        device = device_of(ALONE)
        dtype = str(dtype_of(self.config, device)).removeprefix("torch.")
        return {
            "model": {"sha256": _weights_hash(self.weights), "dtype": dtype, "on": self._where(device)},
            **circumstances(self.config, self.index, self._spoken()),
        }

    def _where(self, device: torch.device) -> str:
        return device.type if self.config.engine.kind == "paged" else self.config.engine.kind

    def _spoken(self) -> Protocol:
        name = self.config.agent.protocol
        tokens = None if name in ("tags", "rlinf") else Tokens.load(self.weights)
        return protocol.make_protocol(name, tokens, load_tools(self.config.agent))


def circumstances(config: Config, index: Path, spoken: Protocol) -> dict[str, Any]:
    """What answers depend on beside the model and the questions, for a stamp."""
    agent = config.agent
    # What a protocol tells the model, and where it stops it.
    grammar = _digest(repr((spoken.instruction, spoken.functions, spoken.stops)))
    return {
        "method": agent.method,
        "protocol": {"name": agent.protocol, "sha256": grammar},
        "prompt": {"name": _plain(agent.template), "sha256": _digest(prompts.load_template(agent.template))},
        "limits": _limits(agent),
        "search": None if agent.method in UNSEARCHED else _search(config.retrieval, index),
        "imported": _imported(config),
    }


def _limits(agent: AgentConfig) -> dict[str, Any]:
    """The other settings of the agent; newer ones only if they are set, so that older evaluations stay comparable."""
    fields = type(agent).model_fields
    return {
        name: value
        for name, value in agent.model_dump().items()
        if name not in NAMED + UNSTAMPED and not (name in NEWER and value == fields[name].default)
    }


def _imported(config: Config) -> Mapping[str, str | None] | None:
    """The functions of the user's own, each by the hash of its module, or none where Python has no source of it."""
    agent, searched = config.agent, config.retrieval
    knobs = {"method": agent.method, "protocol": agent.protocol}
    if agent.method not in UNSEARCHED and searched.replay is None:
        knobs["index"] = str(searched.index)
    return {knob: _source(name) for knob, name in knobs.items() if name.startswith(IMPORT)} or None


def _search(searched: RetrievalConfig, index: Path) -> Mapping[str, Any]:
    rerank = None if searched.rerank is None else {"by": searched.rerank, "depth": searched.rerank_depth}
    pages = None if searched.pages is None else fingerprint(Path(searched.pages))
    if searched.replay is not None:
        return {"replay": fingerprint(Path(searched.replay)), "k": searched.k, "pages": pages}
    name = str(index) if searched.local else str(searched.index)
    known = {"index": backend_identity(name), **_known(name, searched)}
    return {**known, "k": searched.k, "rerank": rerank, "pages": pages}


def named(name: str, wish: Wish, questions: Path | None) -> Candidate:
    """The candidate that a command names: the folder of a run, or a model by folder or name."""
    require_tables(wish.settings, TABLES)
    if (Path(name) / "manifest.json").is_file():
        return _run(Run.open(Path(name)), wish, questions)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise InputError(
            f"{name} is not a run folder, which holds a manifest.json, nor a model folder, which holds a config.json; "
            "give one of them"
        )
    return _model(name, wish, questions)


def require_tables(settings: Sequence[str], tables: tuple[str, ...]) -> None:
    """Refuses settings that have no effect where these tables are all that is looked at."""
    for each in settings:
        if not each.strip().startswith(tables):
            raise ConfigError(f"--set {each} has no effect here; only settings of {', '.join(tables)} have one")


def _run(run: Run, wish: Wish, questions: Path | None) -> Candidate:
    config = _elsewhere(finished.config_of(run), wish)
    trained_prompt = config.agent.template
    sources = sources_of(config, run)
    here = str(sources.index) if config.retrieval.local else str(config.retrieval.index)
    if wish != Wish(before=wish.before):
        config = _changed(config, wish, here, questions or sources.test)
    # What is asked of a finished run is no part of its recording.
    config = config.model_copy(update={"retrieval": config.retrieval.model_copy(update={"record": False})})
    weights = recipe.resolve_policy(config.model.policy) if wish.before else finished.latest(run)
    name = run.path.resolve().name + (" before training" if wish.before else "")
    places = Path(wish.index or here), run.path / SEARCHES, sources.test, sources.train
    return Candidate(name, config, weights, *places, trained_prompt)


def _elsewhere(config: Config, wish: Wish) -> Config:
    """Not at the servers that a run was trained with, which may train another by now, unless they are named again."""
    if config.engine.kind == "paged":
        return config
    dropped = {"url", "weights", "exchange", "in_flight"}
    if _names(wish, "engine.kind"):
        dropped |= {"kind", "command"}
    if _names(wish, "engine.url"):
        dropped |= set(OWN_SERVER_SETTINGS)
    kept = config.engine.model_dump(exclude_defaults=True, exclude=dropped)
    return config.model_copy(update={"engine": EngineConfig(**kept)})


def _names(wish: Wish, knob: str) -> bool:
    return any(each.partition("=")[0].strip() == knob for each in wish.settings)


def _changed(config: Config, wish: Wish, here: str, questions: Path) -> Config:
    """The settings of a run with what the command changes; its index is there, and is not built again."""
    tree: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    tree.pop("world", None)
    tree["data"] = {"train": str(questions), "test": str(questions)}
    kept = {name: value for name, value in tree.get("retrieval", {}).items() if name not in BUILT}
    if wish.index is not None:
        kept.pop("replay", None)
    tree["retrieval"] = kept | ({} if "replay" in kept else {"index": wish.index or here})
    return composed(tree, wish)


def _model(name: str, wish: Wish, questions: Path | None) -> Candidate:
    weights = recipe.resolve_policy(name)
    if wish.before:
        raise ConfigError("--before has no effect with a model, which is as it is; leave it out")
    if questions is None:
        raise InputError(f"{name} is a model, which has no questions of its own; name some with --suite")
    method = method_of(wish)
    if wish.index is None and method not in UNSEARCHED:
        raise ConfigError(f"{name} is a model, which searches nothing by itself; name an index with --index")
    tree: dict[str, Any] = {
        "model": {"policy": name},
        "data": {"train": str(questions), "test": str(questions)},
        "retrieval": {} if wish.index is None else {"index": wish.index},
    }
    label = weights.resolve().name if Path(name).exists() else name
    return Candidate(label, composed(tree, wish), weights, Path(wish.index or "index"), Path(SEARCHES))


def composed(tree: dict[str, Any], wish: Wish) -> Config:
    """The config of a tree; a run's prompt stays unless the method it is evaluated by has a prompt of its own."""
    method, settings = method_of(wish), list(wish.settings)
    if method in UNSEARCHED and wish.index is not None:
        raise ConfigError(f"--index has no effect with the method {method}, which searches nothing; leave it out")
    if method is not None:
        single = ["searches"] if method in SINGLE else []
        unsearched = ["observation_tokens"] if method in UNSEARCHED else []
        agent = tree.get("agent", {})
        another = _default_prompt(agent.pop("method", None)) != _default_prompt(method)
        for name in (*(["prompt"] if another else []), *single, *unsearched):
            agent.pop(name, None)
    if method in UNSEARCHED:
        tree["retrieval"] = {}
    return recipe.compose(tree, [*settings, *([] if wish.method is None else [f'agent.method="{wish.method}"'])])


def _default_prompt(method: str | None) -> str:
    """The prompt of a method where none was chosen."""
    return AgentConfig(method=method or "search").template


def method_of(wish: Wish) -> str | None:
    """The method that the command names, by its option or as a setting."""
    pairs = (each.partition("=") for each in wish.settings)
    named = [value.strip(" '\"") for key, _, value in pairs if key.strip() == "agent.method"]
    return wish.method or (named[-1] if named else None)


def _weights_hash(folder: Path) -> str:
    """The hash of a model folder without what a trainer keeps in it."""
    return _digest(repr({file.name: fingerprint(file) for file in sorted(folder.iterdir()) if file.is_file()}))


def _known(name: str, searched: RetrievalConfig) -> Mapping[str, Any]:
    """By what the index of a stamp is named, and what is known of one that lies elsewhere."""
    service = searched.service
    if backend_of(name) == "server":
        from sleuth.retrieval.service.client import served_index

        token, patience = token_from_env(service.token_env), min(STARTUP_TIMEOUT, service.deadline)
        told = served_index(name, token, service.proxy, patience=patience)
        return {"by": "address", "server": told}
    if backend_of(name) == "web":
        web = {"language": service.language, "country": service.country, "pages": service.pages}
        return {"by": "name", "web": web}
    return {"by": "name" if name.startswith(IMPORT) else "contents"}


def _source(name: str) -> str | None:
    """The hash of the source of the module in which an imported function stands."""
    module = inspect.getmodule(import_function(name)) or sys.modules[name.removeprefix(IMPORT).rpartition(".")[0]]
    try:
        return _digest(inspect.getsource(module))
    except (OSError, TypeError):  # it is compiled, or made at run time
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(template: str) -> str:
    """The name of a prompt without the folder of its file."""
    file, colon, name = template.rpartition(":")
    return f"{Path(file).name}:{name}" if colon else name
