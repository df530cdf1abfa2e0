"""Recipes: a TOML tree with overrides becomes a Config, and whatever is wrong with it becomes one line."""

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
from sleuth.config.section import Section
from sleuth.config.tree import Config
from sleuth.credentials import is_masked, redacted, redacted_tree
from sleuth.errors import ConfigError, InputError

Tree = dict[str, object]

SHOWN = 200  # characters of a value in an error

SHIPPED = Path(__file__).parents[1] / "recipes"
DATA_FILES = ("corpus", "train", "test")
# What does not make another run of one that goes on; a name that ends in a dot stands for its whole table.
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
MAY_BE_EMPTY = ("name", "track.to")  # the first is refused where it is declared
BASE = "base"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its dotted key, type, default (None for absent) and meaning."""

    key: str
    type: str
    default: object
    description: str


def load(name_or_path: str, overrides: Sequence[str] = ()) -> Config:
    """The recipe of that name, or in that file, on its base, with `key=value` overrides applied in order."""
    return composed(_based(_locate(name_or_path)), overrides)


def composed(tree: Tree, overrides: Sequence[str] = ()) -> Config:
    """The config of a tree that a command made, with `key=value` overrides applied in order."""
    for override in overrides:
        _apply(tree, override)
    return _validate(tree)


def anchored(config: Config) -> Config:
    """The config with its paths made absolute, so that a run is found again from any folder."""
    algorithm = config.algorithm
    critic = algorithm.critic.model_copy(
        update={"policy": algorithm.critic.policy and _anchored(algorithm.critic.policy)}
    )
    files = {name: path and str(Path(path).absolute()) for name, path in config.data if name in DATA_FILES}
    searched = config.retrieval
    here = {"index": searched.index if searched.local else None, "replay": searched.replay, "pages": searched.pages}
    here |= {name: path for name in ("encoder", "rerank") if (path := _folder(searched, name)) is not None}
    exchange = {"exchange": str(Path(path).absolute())} if (path := config.engine.exchange) else {}
    anchored_search = {name: str(Path(path).absolute()) for name, path in here.items() if path is not None}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"policy": _anchored(config.model.policy)}),
            "algorithm": algorithm.model_copy(update={"critic": critic}),
            "data": config.data.model_copy(update=files),
            "agent": config.agent.model_copy(update={"prompt": _prompt(config.agent.prompt)}),
            "retrieval": searched.model_copy(update=anchored_search),
            "engine": config.engine.model_copy(update=exchange),
        }
    )


def _prompt(prompt: str | None) -> str | None:
    """A prompt of the user's own with the whole path of its file."""
    file, colon, name = (prompt or "").rpartition(":")
    return f"{Path(file).absolute()}:{name}" if colon else prompt


def _anchored(policy: str) -> str:
    _refuse_address(policy)
    return policy if policy in _packaged() or hub.named(policy) else str(Path(policy).absolute())


def resolved(config: Config) -> Tree:
    """The whole tree with every default filled in and without credentials, as it is saved with a run."""
    tree: Tree = redacted_tree(config.model_dump(mode="json"))
    return tree


def restore(tree: Mapping[str, object]) -> Config:
    """The Config whose `resolved` tree this is."""
    defaults = {knob.key: knob.default for knob in knobs()}
    return _validate(_with_credentials(_without_defaults(tree, defaults, "")))


def amended(tree: Mapping[str, object], overrides: Sequence[str]) -> Config:
    """The Config whose `resolved` tree this is, with what a run that goes on may change changed."""
    known = {knob.key for knob in knobs()}
    changed = _without_defaults(tree, {knob.key: knob.default for knob in knobs()}, "")
    masked = dict(_masked(changed))
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.strip()
        if key in masked and redacted(value.strip()) == masked[key]:  # the same address, with its credentials again
            _apply(changed, override)
            continue
        table = f"{key}."
        named = key if key in known else table
        if (key in known or any(each.startswith(table) for each in known)) and not named.startswith(MAY_CHANGE):
            may = ", ".join(f"{name}*" if name.endswith(".") else name for name in MAY_CHANGE)
            raise ConfigError(f"{key} cannot change after a run was begun; what may: {may}; begin a new run")
        _apply(changed, override)
    return _validate(_with_credentials(changed))


def _masked(tree: Tree) -> Iterator[tuple[str, object]]:
    """The settings of a saved tree whose credentials were left out, with what was saved."""
    return ((key, value) for key, value in _leaves(tree, {knob.key for knob in knobs()}, "") if is_masked(value))


def _with_credentials(tree: Tree) -> Tree:
    """The tree with the credentials that were left out of it taken from the environment."""
    for key, value in list(_masked(tree)):
        variable = f"SLEUTH_{key.upper().replace('.', '_')}"
        given = os.environ.get(variable, "")
        if redacted(given) != value:
            raise ConfigError(
                f"{key} = {value} was saved without its credentials; give the whole address in the environment "
                f"variable {variable}, or to a run that goes on with: --set {key}=ADDRESS"
            )
        _apply(tree, f"{key}={given}")
    return tree


def knobs() -> Iterator[Knob]:
    """Every setting of the tree, in the order of declaration."""
    return _knobs(Config, "")


def shipped() -> list[str]:
    """Names of the recipes in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def resolve_policy(name: str) -> Path:
    """The folder a policy names: one shipped in the package, the user's own, or one of the hub, fetched at need."""
    _refuse_address(name)
    if hub.named(name):
        return hub.policy(
            name,
            f"fetch it where there is a network (hf download {name}; one with a licence to accept needs hf auth login "
            "before), or give a folder that is here",
        )
    folder = SHIPPED / name if name in _packaged() else Path(name)
    if not folder.is_dir():
        raise InputError(
            f"no model folder at {folder}; expected 'quickstart', a Hugging Face model folder, or a name on the hub "
            "such as Qwen/Qwen2.5-3B"
        )
    if (folder / "checkpoints").is_dir():
        raise InputError(f"{folder} is a run; take its policy with: sleuth export {folder} FOLDER")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json; expected a Hugging Face model folder")
    if not any((folder / vocabulary).is_file() for vocabulary in hub.VOCABULARIES):
        raise InputError(
            f"model folder without tokenizer: {folder} holds no tokenizer.json; save the model's tokenizer there"
        )
    return folder


def _refuse_address(policy: str) -> None:
    """Refuses a model behind an address where weights are needed."""
    if policy.startswith(("http://", "https://")):
        raise ConfigError(
            f"{policy} is an address, which gives no logprobs of its own tokens and no weights to update; sleuth "
            "evaluate and sleuth ask can use it, here give a folder or a name on the hub"
        )


def _folder(section: Section, name: str) -> str | None:
    """The folder that a knob names; None where it is its default, or a name on the hub."""
    named = getattr(section, name)
    default = type(section).model_fields[name].default
    return named if named != default and Path(named).is_dir() else None


def _packaged() -> set[str]:
    """Names of the model folders in the package."""
    return {path.name for path in SHIPPED.iterdir() if path.is_dir()}


def _locate(name_or_path: str) -> Path:
    if name_or_path in shipped():
        return SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if path.is_file():
        return path
    nearest = max(shipped(), key=lambda name: _similarity(name, path.stem))
    problem = f"no recipe file at {path}" if path.suffix == ".toml" else f"unknown recipe {name_or_path!r}"
    raise ConfigError(
        f"{problem}; the nearest is {nearest!r} (shipped: {', '.join(shipped())}), or give the path of a TOML file"
    )


def _based(path: Path) -> Tree:
    """The tree of a file, laid over that of the one recipe its `base` names."""
    tree = _read(path)
    if BASE not in tree:
        return tree
    named = tree.pop(BASE)
    base = _base(path, named)
    below = _read(base)
    if BASE in below:
        problem = "names itself" if base.samefile(path) else f"has a base of its own, {_shown(below[BASE])}"
        raise ConfigError(f"{path}: base = {_shown(named)} {problem}; a base must stand on nothing else")
    return _laid(tree, below)


def _base(path: Path, named: object) -> Path:
    """The file of a base: a shipped recipe by name, or a path from the folder of the file that names it."""
    if isinstance(named, str) and named in shipped():
        return SHIPPED / f"{named}.toml"
    if isinstance(named, str) and (path.parent / named).is_file():
        return path.parent / named
    raise ConfigError(
        f"{path}: base = {_shown(named)} is no recipe; expected the path of a TOML file, or one of "
        f"{', '.join(shipped())}"
    )


def _laid(above: Tree, below: Tree) -> Tree:
    """Both trees as one; where both have a value, that of the upper."""
    laid = {**below, **above}
    for name, upper in above.items():
        lower = below.get(name)
        if isinstance(upper, dict) and isinstance(lower, dict):
            laid[name] = _laid(upper, lower)
    return laid


def _read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {_one_line(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, as TOML must be: {_one_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _apply(tree: Tree, override: str) -> None:
    """Sets one `key=value` in the tree, making the tables on the way; a key without a value is taken out of it."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not key=value; write it like --set train.steps=10")
    *tables, name = key.strip().split(".")
    for table in tables:
        inner = tree.setdefault(table, {})
        if not isinstance(inner, dict):
            raise _unknown(key.strip())
        tree = inner
    if text.strip():
        tree[name] = _value(text.strip())
    else:
        tree.pop(name, None)


def _value(text: str) -> object:
    """A TOML value; what is not TOML is text that lost its quotes to the shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validate(tree: Tree) -> Config:
    keys = {knob.key for knob in knobs()}
    for key, value in _leaves(tree, keys, ""):
        if key in _tables(keys):
            example = min(knob for knob in keys if knob.startswith(f"{key}."))
            raise ConfigError(f"{key} = {_shown(value)} should be a table of knobs, such as {example}")
        if key not in keys:
            raise _unknown(key)
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{key} = {_shown(value)} holds a NUL character; remove it")
        if isinstance(value, str) and not value.strip() and key not in MAY_BE_EMPTY:
            raise ConfigError(f"{key} = {_shown(value)} is empty; give a value, or take the setting out: --set {key}=")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    """The first problem pydantic found, with key, value and expectation."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":
        return f"{key}." * bool(key) + str(first["ctx"]["error"])
    expectation = first["msg"].removeprefix("Input should be ")
    return f"{key} = {_shown(first['input'])} should be {expectation}"


def _unknown(key: str) -> ConfigError:
    nearest = _nearest(key, [knob.key for knob in knobs()])
    return ConfigError(f"unknown key {key}; the nearest is {nearest} (sleuth knobs lists them all)")


def _nearest(key: str, keys: Sequence[str]) -> str:
    """The key most like this one: as a whole and in its last part, or in its first, of which a table has no more."""

    def likeness(candidate: str) -> float:
        first = ".".join(candidate.split(".")[: key.count(".") + 1])
        last = _similarity(candidate.rpartition(".")[2], key.rpartition(".")[2])
        return max(_similarity(candidate, key) + last, 2 * _similarity(first, key))

    return max(keys, key=likeness)


def _similarity(first: str, second: str) -> float:
    return SequenceMatcher(a=first, b=second, autojunk=False).ratio()


def _leaves(tree: Mapping[str, object], keys: set[str], prefix: str) -> Iterator[tuple[str, object]]:
    """Dotted keys with their values; a known table may be empty, an unknown one is a leaf then."""
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and key not in keys and (value or key in _tables(keys)):
            yield from _leaves(value, keys, f"{key}.")
        else:
            yield key, value


def _tables(keys: set[str]) -> set[str]:
    return {key.rpartition(".")[0] for key in keys} - {""}


def _without_defaults(tree: Mapping[str, object], defaults: Mapping[str, object], prefix: str) -> Tree:
    """The tree less what is default: a default that was written down must not count as a knob the user set."""
    kept: Tree = {}
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict):
            kept[name] = _without_defaults(value, defaults, f"{key}.")
        elif value is not None and (key not in defaults or value != defaults[key]):
            kept[name] = value
    return kept


def _knobs(section: type[Section], prefix: str) -> Iterator[Knob]:
    for name, field in section.model_fields.items():
        inner = _section_of(field)
        if inner is not None:
            yield from _knobs(inner, f"{prefix}{name}.")
        else:
            yield Knob(prefix + name, _type_of(field), field.default, field.description or "")


def _section_of(field: FieldInfo) -> type[Section] | None:
    options = get_args(field.annotation) or (field.annotation,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, Section)), None)


def _type_of(field: FieldInfo) -> str:
    literal = get_origin(field.annotation) is Literal
    options = (field.annotation,) if literal else get_args(field.annotation) or (field.annotation,)
    return " | ".join(name for option in options if option is not type(None) for name in _names_of(option))


def _names_of(option: Any) -> list[str]:
    """A type by its name, a literal by its choices."""
    if get_origin(option) is Literal:
        return list(map(str, get_args(option)))
    return [(get_args(option)[0] if get_origin(option) is Annotated else option).__name__]


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
