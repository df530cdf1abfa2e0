"""The account of one episode: what happened is told in order, and what it may sample is counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sleuth.errors import EngineFailure
from sleuth.records import Action, Answer, Malformed, ToolCall
from sleuth.serve.agent.events import Step, Tell, Thought


@dataclass(slots=True)
class Account:
    """`left` are the tokens that may still be sampled, None where nothing but the agent's own limits holds."""

    tell: Tell
    left: int | None = None
    cut: bool = False
    steps: int = 0
    _thought: bool = False
    _gap: str = ""
    _waiting: ToolCall | None = None

    def turn(self, most: int) -> int:
        """Begins a turn of `most` tokens: how many it may have; an EngineFailure where none are left."""
        if self.left is not None and self.left <= 0:
            self.cut = True
            raise EngineFailure("the tokens that may be sampled for this question are spent")
        self._gap = "\n\n" if self._thought else ""
        return most if self.left is None else min(most, self.left)

    def sampled(self, tokens: int) -> None:
        """Counts what a turn took."""
        if self.left is not None:
            self.left -= tokens

    def think(self, text: str) -> None:
        """The next piece of a thought; those of two turns are apart."""
        if text:
            self.tell(Thought(self._gap + text))
            self._gap, self._thought = "", True

    def act(self, action: Action, thought: str) -> None:
        """A turn has ended in an action: a step begins."""
        self._waiting = action if isinstance(action, ToolCall) else None
        self._step({**_shown(action), "thought": thought})

    def call(self, call: ToolCall) -> None:
        """Something is searched for: by the step that a turn began, or by one of its own where no turn asked for it."""
        if call != self._waiting:
            self._step({**_shown(call), "thought": ""})
        self._waiting = None

    def found(self, content: Mapping[str, Any]) -> None:
        """What became of the call."""
        self.tell(Step(self.steps - 1, content))

    def _step(self, content: Mapping[str, Any]) -> None:
        self.tell(Step(self.steps, content))
        self.steps += 1


def _shown(action: Action) -> dict[str, Any]:
    match action:
        case ToolCall("search"):
            return {"type": "search", "queries": list(action.lookups)}
        case ToolCall("access"):
            return {"type": "access", "urls": list(action.lookups)}
        case ToolCall(name, arguments):
            return {"type": "tool", "name": name, "arguments": dict(arguments)}
        case Answer():
            return {"type": "answer"}
        case Malformed(reason):
            return {"type": "malformed", "reason": reason}
