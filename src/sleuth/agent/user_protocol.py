"""A protocol by `import:`: what it raises or returns wrongly is a FunctionFailed that names it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sleuth.agent.observation import Observation
from sleuth.agent.template import Function
from sleuth.config.hooks import call
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.records import Access, Action, Answer, Hit, Malformed, Search

if TYPE_CHECKING:
    from sleuth.agent.protocol import Protocol

PROPERTIES = ("stops", "instruction", "functions", "marks")
METHODS = ("parse", "act", "formed", "observe", "correct", "told")


@dataclass(frozen=True, slots=True)
class UserProtocol:
    """The user's protocol behind checks; see Protocol."""

    name: str
    inner: "Protocol"

    def __post_init__(self) -> None:
        missing = [name for name in (*PROPERTIES, *METHODS) if not hasattr(self.inner, name)]
        if missing:
            raise ConfigError(
                f"{self.name!r} returned {type(self.inner).__name__}, which has no {', '.join(missing)}; expected a "
                "Protocol (docs/protocols.md)"
            )
        if not isinstance(self.stops, tuple) or not all(isinstance(stop, str) and stop for stop in self.stops):
            raise ConfigError(f"{self.name!r}: stops is {self.stops!r}; expected a tuple of strings")

    @property
    def stops(self) -> tuple[str, ...]:
        return self.inner.stops

    @property
    def instruction(self) -> str:
        return self.inner.instruction

    @property
    def functions(self) -> tuple[Function, ...]:
        return self.inner.functions

    @property
    def marks(self) -> tuple[str, str] | None:
        return self.inner.marks

    def parse(self, text: str) -> Action:
        found: Action = self._checked("parse", (Search, Access, Answer, Malformed), text)
        return found

    def act(self, action: Search | Access | Answer) -> str:
        return str(self._checked("act", (str,), action))

    def formed(self, text: str, action: Action) -> bool:
        return bool(self._checked("formed", (bool,), text, action))

    def observe(self, action: Search | Access, found: Sequence[Sequence[Hit]]) -> Observation:
        shown: Observation = self._checked("observe", (Observation,), action, found)
        return shown

    def correct(self, action: Malformed) -> Observation:
        shown: Observation = self._checked("correct", (Observation,), action)
        return shown

    def told(self, said: Sequence[str], shown: Sequence[Observation]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = self._checked("told", (list,), said, shown)
        return messages

    def _checked(self, method: str, types: tuple[type, ...], *arguments: Any) -> Any:
        found = call(self.name, getattr(self.inner, method), *arguments)
        if not isinstance(found, types):
            expected = " or ".join(each.__name__ for each in types)
            raise FunctionFailed(
                f"{self.name!r}: {type(self.inner).__name__}.{method} returned {type(found).__name__}; "
                f"expected {expected}"
            )
        return found
