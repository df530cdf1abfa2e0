"""The grammars in which the model acts and is answered."""

from collections.abc import Callable, Sequence
from typing import Protocol as TypingProtocol

from sleuth.agent.observation import Observation
from sleuth.agent.tags import Tags
from sleuth.agent.template import Function
from sleuth.agent.tool_calls import Tools
from sleuth.agent.user_protocol import UserProtocol
from sleuth.config.hooks import IMPORT, Contract, call, resolve
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Access, Action, Answer, Hit, Malformed, Search

CONTRACT = Contract(("tokens",), "a Protocol")


class Protocol(TypingProtocol):
    """A grammar: how actions are read, how observations are written, where generation stops.

    `functions` is what the chat template is told of, nothing where calls are not its business; `marks` is what stands
    around an observation in the model's own turn, None where observations are turns of others.
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
        """The action in a turn's text; total, it never raises."""
        ...

    def act(self, action: Search | Access | Answer) -> str:
        """The text of an action, as the model would write it."""
        ...

    def formed(self, text: str, action: Action) -> bool:
        """Whether a turn that was parsed as this action has the form asked for, with nothing missing or too much."""
        ...

    def observe(self, action: Search | Access, found: Sequence[Sequence[Hit]]) -> Observation:
        """What the model is shown: the hits of each query, or the page of each url, none where there is none."""
        ...

    def correct(self, action: Malformed) -> Observation:
        """What the model is told after a turn outside the grammar."""
        ...

    def told(self, said: Sequence[str], shown: Sequence[Observation]) -> list[dict[str, str]]:
        """An episode as messages to learn from: the texts of its turns, and what was shown after each but the last."""
        ...


def _tags(_tokens: Tokens | None) -> Protocol:
    return Tags()


def _tools(tokens: Tokens | None) -> Protocol:
    return Tools(_needed(tokens))


def _tools_access(tokens: Tokens | None) -> Protocol:
    return Tools(_needed(tokens), ("search", "access"))


def _needed(tokens: Tokens | None) -> Tokens:
    if tokens is None:
        raise ConfigError("the protocol tools speaks through a model's chat template; name the model with --model")
    return tokens


PROTOCOLS: dict[str, Callable[[Tokens | None], Protocol]] = {
    "tags": _tags,
    "tools": _tools,
    "tools-access": _tools_access,
}


def named(name: str, tokens: Tokens | None = None) -> Protocol:
    """A protocol by name, or by `import:package.function` that is given the tokens and returns one.

    `tokens` are those of the model that is to speak it, None where there is none yet.
    """
    made: Protocol = call(name, resolve("agent.protocol", name, PROTOCOLS, CONTRACT), tokens)
    return UserProtocol(name, made) if name.startswith(IMPORT) else made
