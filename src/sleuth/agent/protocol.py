"""The grammars in which the model acts and is answered, by name or by `import:`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as TypingProtocol

from sleuth.agent.chat_template import Function
from sleuth.agent.function_calls import FunctionCalls
from sleuth.agent.observation import Observation
from sleuth.agent.tags import RLinfTags, Tags
from sleuth.agent.tools import SEARCH, Tool, ToolResult
from sleuth.config.agent import BUILT_IN_TOOLS
from sleuth.config.hooks import IMPORT, Contract, call, resolve
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Answer, Malformed, ToolCall

CONTRACT = Contract(("tokens",), "a Protocol")
PROPERTIES = ("stops", "instruction", "functions", "marks")
METHODS = ("parse", "write", "is_well_formed", "observe", "correct", "to_messages")


class Protocol(TypingProtocol):
    """A grammar: how actions are parsed, how observations are worded, and where generation stops.

    `functions` are the declarations for the chat template. `marks` enclose an observation inside the model's own
    message; None if observations are messages of another role.
    """

    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def instruction(self) -> str: ...
    @property
    def functions(self) -> tuple[Function, ...]: ...
    @property
    def marks(self) -> tuple[str, str] | None: ...

    def parse(self, text: str) -> Action:
        """The action of a turn; total, it never raises."""
        ...

    def write(self, action: ToolCall | Answer) -> str:
        """An action as the model would write it."""
        ...

    def is_well_formed(self, text: str, action: Action) -> bool:
        """Whether the turn has exactly the required format, with nothing missing and nothing extra."""
        ...

    def observe(self, call: ToolCall, result: ToolResult) -> Observation:
        """The observation of a call: the passages of each query, the page of each URL, or a tool's text."""
        ...

    def correct(self, action: Malformed) -> Observation:
        """The observation after a malformed turn."""
        ...

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        """An episode as training messages: its turns, and the observation after each but the last."""
        ...


def _tags(_tokens: Tokens | None, tools: Sequence[Tool] = (SEARCH,)) -> Protocol:
    return Tags(tools)


def _rlinf(_tokens: Tokens | None, tools: Sequence[Tool] = (SEARCH,)) -> Protocol:
    return RLinfTags(tools)


def _function_calls(tokens: Tokens | None, tools: Sequence[Tool]) -> Protocol:
    if tokens is None:
        raise ConfigError("the protocol tools needs a model's chat template; name the model with --model")
    return FunctionCalls(tokens, tools)


PROTOCOLS: dict[str, Callable[[Tokens | None, Sequence[Tool]], Protocol]] = {
    "tags": _tags,
    "rlinf": _rlinf,
    "tools": _function_calls,
}


def make_protocol(name: str, tokens: Tokens | None = None, tools: Sequence[Tool] = (SEARCH,)) -> Protocol:
    """The protocol for a model's tokens and tools; a user's function takes the tokens, and may take the tools."""
    factory = resolve("agent.protocol", name, PROTOCOLS, CONTRACT)
    if not name.startswith(IMPORT):
        return factory(tokens, tools)
    try:
        inspect.signature(factory).bind(tokens, tools)
    except TypeError:
        if any(tool.name not in BUILT_IN_TOOLS for tool in tools):
            raise ConfigError(
                f"{name!r} takes the tokens only and cannot offer agent.tools; expected def (tokens, tools)"
            ) from None
        return UserProtocol(name, call(name, factory, tokens))
    return UserProtocol(name, call(name, factory, tokens, tools))


@dataclass(frozen=True, slots=True)
class UserProtocol:
    """A protocol by `import:`; an exception or a result of the wrong type is a FunctionFailed that names it."""

    name: str
    inner: Protocol

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
        action: Action = self._checked("parse", (ToolCall, Answer, Malformed), text)
        return action

    def write(self, action: ToolCall | Answer) -> str:
        return str(self._checked("write", (str,), action))

    def is_well_formed(self, text: str, action: Action) -> bool:
        return bool(self._checked("is_well_formed", (bool,), text, action))

    def observe(self, call: ToolCall, result: ToolResult) -> Observation:
        observation: Observation = self._checked("observe", (Observation,), call, result)
        return observation

    def correct(self, action: Malformed) -> Observation:
        observation: Observation = self._checked("correct", (Observation,), action)
        return observation

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = self._checked("to_messages", (list,), turns, observations)
        return messages

    def _checked(self, method: str, types: tuple[type, ...], *arguments: Any) -> Any:
        result = call(self.name, getattr(self.inner, method), *arguments)
        if not isinstance(result, types):
            expected = " or ".join(each.__name__ for each in types)
            raise FunctionFailed(
                f"{self.name!r}: {type(self.inner).__name__}.{method} returned {type(result).__name__}; "
                f"expected {expected}"
            )
        return result
