"""Recipes: build a Config from a TOML file and overrides; raises a one-line ConfigError for any problem."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from sleuth import hub
from sleuth.config.agent import MULTI_TURN, OUTSIDE, OWN_AGENT, SINGLE, TOOL_FILES, UNSEARCHED
from sleuth.config.data import FILES
from sleuth.config.hooks import register
from sleuth.config.section import Section
from sleuth.config.tree import Config
from sleuth.credentials import is_redacted, redact, redact_tree
from sleuth.errors import ConfigError, InputError

Tree = dict[str, object]

MAX_SHOWN = 200  # characters of a value in an error message
SHIPPED = Path(__file__).parents[1] / "recipes"
# Settings that a resumed run may change; a trailing dot stands for the whole table.
MAY_CHANGE = (
    "train.steps",
    "train.save_every",
    "train.keep",
    "train.keep_best",
    "train.pack_tokens",
    "train.recompute",
    "train.offload",
    "train.threads",
    "evaluate.every",
    "evaluate.after",
    "agent.concurrency",
    "engine.",
    "guards.",
    "track.",
)
MAY_BE_EMPTY = ("name", "track.to")  # Config itself rejects an empty name
BASE = "base"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: dotted key, type, default (None if absent) and description."""

    key: str
    type: str
    default: object
    description: str


def load(name_or_path: str, overrides: Sequence[str] = ()) -> Config:
    """Load a shipped recipe by name, or a TOML file, and apply `key=value` overrides in order."""
    return compose(_read_with_base(_locate(name_or_path)), overrides)


def compose(tree: Tree, overrides: Sequence[str] = ()) -> Config:
    """Build a Config from a tree and `key=value` overrides; another agent or method removes what it does not use."""
    given: Tree = {}
    for override in overrides:
        _apply(given, override)
    _remove_unused(tree, given)
    for override in overrides:
        _apply(tree, override)
    return _validate(tree)


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings in Python, {"train.steps": 2} or {"train": {"steps": 2}}, to `key=value` overrides.

    None stands for the default. Functions are registered, see `hooks.register`.
    """
    lines: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += [f"{key}.{inner}" for inner in overrides(value)]
        else:
            lines.append(f"{key}={'' if value is None else json.dumps(_plain(key, value), ensure_ascii=False)}")
    return lines


def _plain(key: str, value: Any) -> Any:
    match value:
        case str() | int() | float():
            return value
        case Path():
            return str(value)
        case list() | tuple():
            return [_plain(key, each) for each in value]
        case _ if callable(value):
            return register(value)
    raise ConfigError(f"{key} = {_shown(repr(value))} has the type {type(value).__name__}; expected a TOML value")


def shipped() -> list[str]:
    """Return the names of the recipes in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def settings() -> Iterator[Setting]:
    """Return every setting of the tree, in declaration order."""
    return _settings(Config, "")


def with_absolute_paths(config: Config) -> Config:
    """Make every path absolute, so that the run can be resumed from any folder."""
    retrieval, algorithm = config.retrieval, config.algorithm
    paths = {
        "index": retrieval.index if retrieval.local else None,
        "replay": retrieval.replay,
        "pages": retrieval.pages,
    }
    for name in ("encoder", "rerank"):
        model = getattr(retrieval, name)
        is_given = model != type(retrieval).model_fields[name].default
        # os.path.isdir: Path.is_dir raises an error for a name that is too long.
        paths[name] = model if is_given and os.path.isdir(model) else None  # noqa: PTH112
    file, colon, prompt = (config.agent.prompt or "").rpartition(":")
    updates: dict[str, dict[str, object]] = {
        "model": {"policy": _absolute_policy(config.model.policy)},
        "algorithm": {
            name: each.model_copy(update={"policy": each.policy and _absolute_policy(each.policy)})
            for name, each in (("critic", algorithm.critic), ("teacher", algorithm.teacher))
        },
        "data": {name: _absolute(getattr(config.data, name)) for name in FILES},
        "agent": {
            "tools": [_absolute(tool) if tool.endswith(TOOL_FILES) else tool for tool in config.agent.tools],
            **({"prompt": f"{_absolute(file)}:{prompt}"} if colon else {}),
        },
        "retrieval": {name: _absolute(path) for name, path in paths.items() if path is not None},
        "engine": {"exchange": _absolute(config.engine.exchange)} if config.engine.exchange else {},
    }
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=update) for name, update in updates.items()}
    )


def resolved(config: Config) -> Tree:
    """Return the tree with all defaults and without credentials, as saved with a run."""
    tree: Tree = redact_tree(config.model_dump(mode="json"))
    return tree


def restore(tree: Mapping[str, object]) -> Config:
    """Restore the Config from a `resolved` tree."""
    return _validate(_with_credentials(_without_defaults(tree)))


def amend(tree: Mapping[str, object], overrides: Sequence[str]) -> Config:
    """Restore a `resolved` tree with overrides; raises ConfigError for settings that a resumed run cannot change."""
    keys = {setting.key for setting in settings()}
    changed = _without_defaults(tree)
    masked = dict(_masked(changed))
    for override in overrides:
        key, _, value = (part.strip() for part in override.partition("="))
        table = f"{key}."
        is_known = key in keys or any(each.startswith(table) for each in keys)
        same_address = key in masked and redact(value) == masked[key]  # only adds the removed credentials
        if is_known and not same_address and not (key if key in keys else table).startswith(MAY_CHANGE):
            allowed = ", ".join(f"{name}*" if name.endswith(".") else name for name in MAY_CHANGE)
            raise ConfigError(f"{key} cannot change when a run is resumed; allowed: {allowed}; or start a new run")
        _apply(changed, override)
    return _validate(_with_credentials(changed))


def resolve_policy(name: str) -> Path:
    """Return the folder of a policy: shipped, local, or downloaded from the Hub."""
    _reject_address(name)
    if hub.is_hub_name(name):
        return hub.download_policy(
            name,
            f"download it on a machine with network access (hf download {name}; a gated model needs hf auth login "
            "first), or give a local folder",
        )
    folder = SHIPPED / name if name in _shipped_models() else Path(name)
    if not folder.is_dir():
        raise InputError(
            f"no model folder at {folder}; expected 'quickstart', a Hugging Face model folder, or a hub name such as "
            "Qwen/Qwen2.5-3B"
        )
    if (folder / "checkpoints").is_dir():
        raise InputError(f"{folder} is a run folder; export its policy with: sleuth export {folder} FOLDER")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; expected a Hugging Face model folder")
    if not any((folder / vocabulary).is_file() for vocabulary in hub.VOCABULARIES):
        raise InputError(f"{folder} is a model folder without a tokenizer; save the model's tokenizer.json there")
    return folder


def _absolute(path: str | list[str] | None) -> str | list[str] | None:
    if isinstance(path, list):
        return [str(Path(each).absolute()) for each in path]
    return path and str(Path(path).absolute())


def _absolute_policy(policy: str) -> str:
    _reject_address(policy)
    return policy if policy in _shipped_models() or hub.is_hub_name(policy) else str(Path(policy).absolute())


def _reject_address(policy: str) -> None:
    if policy.startswith(("http://", "https://")):
        raise ConfigError(
            f"{policy} is a server address, which has no weights to train; sleuth evaluate and sleuth ask accept it, "
            "here give a model folder or a hub name"
        )


def _shipped_models() -> set[str]:
    return {path.name for path in SHIPPED.iterdir() if path.is_dir()}


def _masked(tree: Tree) -> Iterator[tuple[str, object]]:
    """The settings of a saved tree whose credentials were masked, with their saved values."""
    keys = {setting.key for setting in settings()}
    return ((key, value) for key, value in _leaves(tree, keys, "") if is_redacted(value))


def _with_credentials(tree: Tree) -> Tree:
    """Restore masked credentials from environment variables."""
    for key, value in list(_masked(tree)):
        variable = f"SLEUTH_{key.upper().replace('.', '_')}"
        given = os.environ.get(variable, "")
        if redact(given) != value:
            raise ConfigError(
                f"{key} = {value} was saved without its credentials; set the full address in the environment variable "
                f"{variable}, or resume with: --set {key}=ADDRESS"
            )
        _apply(tree, f"{key}={given}")
    return tree


def _locate(name_or_path: str) -> Path:
    if name_or_path in shipped():
        return SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if path.is_file():
        return path
    nearest = max(shipped(), key=lambda name: _similarity(name, path.stem))
    problem = f"no recipe file at {path}" if path.suffix == ".toml" else f"unknown recipe {name_or_path!r}"
    raise ConfigError(
        f"{problem}; did you mean {nearest!r}? (shipped: {', '.join(shipped())}), or give the path of a TOML file"
    )


def _read_with_base(path: Path) -> Tree:
    """Read a recipe and merge its settings over those of its `base`, if any."""
    tree = _read(path)
    if BASE not in tree:
        return tree
    name = tree.pop(BASE)
    if isinstance(name, str) and name in shipped():
        base = SHIPPED / f"{name}.toml"
    elif isinstance(name, str) and (path.parent / name).is_file():
        base = path.parent / name
    else:
        raise ConfigError(
            f"{path}: base = {_shown(name)} is not a recipe; expected the path of a TOML file, or one of "
            f"{', '.join(shipped())}"
        )
    below = _read(base)
    if BASE in below:
        problem = "names itself" if base.samefile(path) else f"has its own base, {_shown(below[BASE])}"
        raise ConfigError(f"{path}: base = {_shown(name)} {problem}; a base must not have a base")
    _remove_unused(below, tree)
    return _merge(tree, below)


def _remove_unused(tree: Tree, above: Tree) -> None:
    """Remove the settings of the agent that have no effect on the agent or method that `above` selects."""
    agent, selected = tree.get("agent"), above.get("agent")
    if not isinstance(agent, dict) or not isinstance(selected, dict):
        return
    unused: tuple[str, ...] = ()
    if any(name in selected for name in OUTSIDE):
        unused = ("method", *OWN_AGENT)
    elif (method := selected.get("method")) in SINGLE:
        unused = (*MULTI_TURN, "observation_tokens") if method in UNSEARCHED else MULTI_TURN
    tree["agent"] = {name: value for name, value in agent.items() if name not in unused}


def _merge(above: Tree, below: Tree) -> Tree:
    merged = {**below, **above}
    for name, upper in above.items():
        lower = below.get(name)
        if isinstance(upper, dict) and isinstance(lower, dict):
            merged[name] = _merge(upper, lower)
    return merged


def _read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {_one_line(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, as TOML must be: {_one_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _apply(tree: Tree, override: str) -> None:
    """Set one `key=value` in the tree; an empty value removes the key."""
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not key:
        raise ConfigError(f"--set {override!r} is not key=value; write it like --set train.steps=10")
    *tables, name = key.split(".")
    for table in tables:
        inner = tree.setdefault(table, {})
        if not isinstance(inner, dict):
            raise _unknown(key)
        tree = inner
    if not text:
        tree.pop(name, None)
        return
    try:
        tree[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        tree[name] = text  # a string whose quotes the shell removed


def _validate(tree: Tree) -> Config:
    keys = {setting.key for setting in settings()}
    for key, value in _leaves(tree, keys, ""):
        if key in _tables(keys):
            example = min(each for each in keys if each.startswith(f"{key}."))
            raise ConfigError(f"{key} = {_shown(value)} should be a table of settings, such as {example}")
        if key not in keys:
            raise _unknown(key)
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{key} = {_shown(value)} contains a NUL character; remove it")
        if isinstance(value, str) and not value.strip() and key not in MAY_BE_EMPTY:
            raise ConfigError(f"{key} = {_shown(value)} is empty; give a value, or remove the setting: --set {key}=")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *path, last = map(str, first["loc"] or [""])
        key = f"a key of {'.'.join(path[:-1])}" if last == "[key]" else ".".join([*path, last])
        if first["type"] == "value_error":
            raise ConfigError(f"{key}." * bool(key) + str(first["ctx"]["error"])) from error
        expectation = first["msg"].partition(" should ")[2] or f"be valid: {first['msg']}"
        raise ConfigError(f"{key} = {_shown(first['input'])} should {expectation}") from error


def _unknown(key: str) -> ConfigError:
    """Return an error that suggests the most similar key."""

    def similarity(candidate: str) -> float:
        first = ".".join(candidate.split(".")[: key.count(".") + 1])
        last = _similarity(candidate.rpartition(".")[2], key.rpartition(".")[2])
        return max(_similarity(candidate, key) + last, 2 * _similarity(first, key))

    nearest = max((setting.key for setting in settings()), key=similarity)
    return ConfigError(f"unknown setting {key}; did you mean {nearest}? (sleuth settings lists all)")


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(a=first, b=second, autojunk=False).ratio()


def _leaves(tree: Mapping[str, object], keys: set[str], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield dotted keys with their values; an unknown empty table counts as a leaf."""
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and key not in keys and (value or key in _tables(keys)):
            yield from _leaves(value, keys, f"{key}.")
        else:
            yield key, value


def _tables(keys: set[str]) -> set[str]:
    return {key.rpartition(".")[0] for key in keys} - {""}


def _without_defaults(tree: Mapping[str, object], prefix: str = "") -> Tree:
    """Remove defaults, so that a saved default does not count as a setting given by the user."""
    defaults = {setting.key: setting.default for setting in settings()}
    kept: Tree = {}
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and key not in defaults:
            kept[name] = _without_defaults(value, f"{key}.")
        elif value is not None and (key not in defaults or value != defaults[key]):
            kept[name] = value
    return kept


def _settings(section: type[Section], prefix: str) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        options = get_args(field.annotation) or (field.annotation,)
        inner = next((each for each in options if isinstance(each, type) and issubclass(each, Section)), None)
        if inner is not None:
            yield from _settings(inner, f"{prefix}{name}.")
        else:
            yield Setting(prefix + name, _type_name(field), field.default, " ".join((field.description or "").split()))


def _type_name(field: FieldInfo) -> str:
    whole = get_origin(field.annotation) in (Literal, list, dict, tuple)
    options = (field.annotation,) if whole else get_args(field.annotation) or (field.annotation,)
    return " | ".join(name for option in options if option is not type(None) for name in _option_names(option))


def _option_names(option: Any) -> list[str]:
    """Describe a type by its name, or a Literal by its values."""
    if get_origin(option) is Literal:
        return list(map(str, get_args(option)))
    if get_origin(option) in (list, dict, tuple):
        return [str(option)]
    return [(get_args(option)[0] if get_origin(option) is Annotated else option).__name__]


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
