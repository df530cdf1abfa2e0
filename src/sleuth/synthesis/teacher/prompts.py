"""Prompts of the teacher: conversations read from a TOML file that a user can replace."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sleuth.errors import ConfigError

SHIPPED = Path(__file__).with_name("prompts.toml")
# The names that each prompt must contain; others in braces are left as they are.
NAMES: dict[str, frozenset[str]] = {
    "single": frozenset({"title", "passage"}),
    "linked": frozenset({"name", "title", "passage", "other_title", "other_passage"}),
    "closed_book": frozenset({"question"}),
    "reader": frozenset({"passage", "question"}),
}
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,20})\}")

Messages = tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with a user message to fill in."""

    system: str
    examples: tuple[tuple[str, str], ...]
    user: str

    def messages(self, **contents: str) -> Messages:
        """Fill in the names in braces, in one pass, so that braces in a document stay as they are."""

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda place: contents.get(place[1], place[0]), text).strip()

        turns = [("system", fill(self.system))] if self.system.strip() else []
        for user, assistant in self.examples:
            turns += [("user", user.strip()), ("assistant", assistant.strip())]
        turns.append(("user", fill(self.user)))
        return tuple({"role": role, "content": content} for role, content in turns)


def load_prompts(file: Path | None = None) -> Mapping[str, Prompt]:
    """Read the prompts of a file; those that it lacks are the shipped ones. Raises ConfigError for an invalid file."""
    shipped = _read(SHIPPED)
    return shipped if file is None else {**shipped, **_read(file)}


def _read(file: Path) -> dict[str, Prompt]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"cannot read the prompts of {file} ({reason}); expected a TOML file") from error
    if unknown := sorted(tables.keys() - NAMES.keys()):
        raise ConfigError(f"{file} has a prompt {unknown[0]!r}; expected {', '.join(NAMES)}")
    return {name: _parse(name, table, file) for name, table in tables.items()}


def _parse(name: str, table: object, file: Path) -> Prompt:
    match table:
        case {"user": str(user), **rest} if rest.keys() <= {"system", "examples"}:
            system, examples = rest.get("system", ""), rest.get("examples", [])
        case _:
            raise ConfigError(f"the prompt {name!r} of {file} must be a table with user, and perhaps system, examples")
    pairs = [tuple(pair) for pair in examples if isinstance(pair, list)] if isinstance(examples, list) else []
    valid = isinstance(examples, list) and len(pairs) == len(examples)
    if not isinstance(system, str) or not valid or not all(_is_pair(pair) for pair in pairs):
        raise ConfigError(
            f"the prompt {name!r} of {file} must have a text as system, and pairs of texts as examples: [[user, reply]]"
        )
    found = set(_PLACEHOLDER.findall(user))
    if missing := sorted(NAMES[name] - found):
        raise ConfigError(f"the prompt {name!r} of {file} lacks {{{missing[0]}}} in its user message; add it")
    return Prompt(system, tuple((first, second) for first, second in pairs), user)


def _is_pair(pair: tuple[object, ...]) -> bool:
    return len(pair) == 2 and all(isinstance(text, str) for text in pair)
