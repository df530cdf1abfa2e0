"""Protocols: the grammars of actions and observations, built in or imported."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
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
RESULT_TYPES: dict[str, tuple[type, ...]] = {
    "parse": (ToolCall, Answer, Malformed),
    "write": (str,),
    "is_well_formed": (bool,),
    "observe": (Observation,),
    "correct": (Observation,),
    "to_messages": (list,),
}


class Protocol(TypingProtocol):
    """A grammar: how actions are parsed, how observations are written, and where generation stops.

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
        """Parse the action of a turn; never raises."""

    def write(self, action: ToolCall | Answer) -> str:
        """Write an action as the model would."""

    def is_well_formed(self, text: str, action: Action) -> bool:
        """Whether the turn has exactly the required format, with nothing missing and nothing extra."""

    def observe(self, call: ToolCall, result: ToolResult) -> Observation:
        """Return the observation after a call: the passages of each query, the page of each URL, or a tool's text."""

    def correct(self, action: Malformed) -> Observation:
        """Return the observation after a malformed turn."""

    def to_messages(self, turns: Sequence[str], observations: Sequence[Observation]) -> list[dict[str, str]]:
        """Convert an episode to training messages: its turns, with an observation after each turn but the last."""


PROTOCOLS: dict[str, Callable[[Tokens | None, Sequence[Tool]], Protocol]] = {
    "tags": lambda _, tools: Tags(tools),
    "rlinf": lambda _, tools: RLinfTags(tools),
    "tools": FunctionCalls,
}


def make_protocol(name: str, tokens: Tokens | None = None, tools: Sequence[Tool] = (SEARCH,)) -> Protocol:
    """Build the protocol for a tokenizer and tools; a user's function takes the tokens and, optionally, the tools."""
    factory = resolve("agent.protocol", name, PROTOCOLS, CONTRACT)
    if not name.startswith(IMPORT):
        return factory(tokens, tools)
    arguments: tuple[Any, ...] = (tokens, tools)
    try:
        inspect.signature(factory).bind(*arguments)
    except TypeError:
        if any(tool.name not in BUILT_IN_TOOLS for tool in tools):
            raise ConfigError(
                f"{name!r} takes only the tokens and cannot offer agent.tools; expected def (tokens, tools)"
            ) from None
        arguments = (tokens,)
    return cast(Protocol, UserProtocol(name, call(name, factory, *arguments)))


class UserProtocol:
    """Wraps an imported protocol; raises FunctionFailed if a method raises or returns a value of the wrong type."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name, self.inner = name, inner
        missing = [attribute for attribute in (*PROPERTIES, *RESULT_TYPES) if not hasattr(inner, attribute)]
        if missing:
            raise ConfigError(
                f"{name!r} returned {type(inner).__name__}, which has no {', '.join(missing)}; expected a "
                "Protocol (docs/protocols.md)"
            )
        if not isinstance(inner.stops, tuple) or not all(isinstance(stop, str) and stop for stop in inner.stops):
            raise ConfigError(f"{name!r}: stops is {inner.stops!r}; expected a tuple of strings")

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self.inner, attribute)
        return partial(self._checked, attribute, value) if attribute in RESULT_TYPES else value

    def _checked(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = call(self.name, function, *arguments)
        if not isinstance(result, RESULT_TYPES[method]):
            expected = " or ".join(each.__name__ for each in RESULT_TYPES[method])
            raise FunctionFailed(
                f"{self.name!r}: {type(self.inner).__name__}.{method} returned {type(result).__name__}; "
                f"expected {expected}"
            )
        return result
