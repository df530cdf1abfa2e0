"""The events of a served episode: pieces of reasoning, steps and the end, recorded while it runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleuth.agent.protocol import Protocol
from sleuth.errors import EngineFailure
from sleuth.records import Action, Answer, Hit, Malformed, StopReason, ToolCall, Trajectory

THINK_TAGS = ("<think>", "</think>")
_THINK_TAG = re.compile("|".join(THINK_TAGS))
_OPENING_TAG = re.compile(r"<\w+>")
BARE_PREFIX = 8  # characters that identify an action without a tag, such as {"name":


@dataclass(frozen=True, slots=True)
class Thought:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """Fields of a step; several events may add to the step of one index."""

    index: int
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The finished episode; `token_limit` if the token budget of the request ended it."""

    trajectory: Trajectory
    seconds: float
    token_limit: bool

    @property
    def stop(self) -> str:
        """The stop reason: that of the trajectory, or max_tokens."""
        return "max_tokens" if self.token_limit else self.trajectory.stop.value

    @property
    def failure(self) -> StopReason | None:
        """The stop reason of an unusable trajectory."""
        return None if self.token_limit or self.trajectory.stop.usable else self.trajectory.stop


Event = Thought | Step | End


@dataclass(slots=True)
class EpisodeRecorder:
    """Converts an episode into events and enforces its token budget; None means no budget."""

    emit: Callable[[Event], None]
    tokens_left: int | None = None
    token_limit: bool = False
    steps: int = 0
    _has_thought: bool = False
    _separator: str = ""
    _announced: ToolCall | None = None

    def begin_turn(self, max_tokens: int) -> int:
        """The number of tokens that a turn may sample; an EngineFailure if none are left."""
        if self.tokens_left is not None and self.tokens_left <= 0:
            self.token_limit = True
            raise EngineFailure("the token budget of this request is spent")
        self._separator = "\n\n" if self._has_thought else ""
        return max_tokens if self.tokens_left is None else min(max_tokens, self.tokens_left)

    def count_tokens(self, tokens: int) -> None:
        if self.tokens_left is not None:
            self.tokens_left -= tokens

    def add_thought(self, text: str) -> None:
        """Emit a piece of reasoning; a blank line separates the turns."""
        if text:
            self.emit(Thought(self._separator + text))
            self._separator, self._has_thought = "", True

    def end_turn(self, action: Action, thought: str) -> None:
        """Begin the step of a turn's action."""
        self._announced = action if isinstance(action, ToolCall) else None
        self._begin_step({**_describe(action), "thought": thought})

    def begin_call(self, call: ToolCall) -> None:
        """Begin a step for a call, unless `end_turn` already did."""
        if call != self._announced:
            self._begin_step({**_describe(call), "thought": ""})
        self._announced = None

    def end_call(self, content: Mapping[str, Any]) -> None:
        """Add the result of a call to its step."""
        self.emit(Step(self.steps - 1, content))

    def _begin_step(self, content: Mapping[str, Any]) -> None:
        self.emit(Step(self.steps, content))
        self.steps += 1


def _describe(action: Action) -> dict[str, Any]:
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


def describe_source(hit: Hit) -> dict[str, Any]:
    """A passage as clients receive it."""
    passage, url = hit.passage, hit.passage.extra.get("url")
    source = {"id": passage.id, "title": passage.title, "text": passage.text, "score": hit.score}
    return {**source, "url": url} if isinstance(url, str) else source


def action_prefixes(protocol: Protocol) -> tuple[str, ...]:
    """How the actions of a protocol begin; the text before them is reasoning."""
    examples = [protocol.write(ToolCall.search("Oslo")), protocol.write(Answer("Oslo"))]
    prefixes = [match[0] if (match := _OPENING_TAG.match(text)) else text[:BARE_PREFIX] for text in examples]
    return tuple(dict.fromkeys([*prefixes, *(stop.replace("</", "<", 1) for stop in protocol.stops)]))


class ReasoningParser:
    """Extracts the reasoning of one turn from its growing text: without tags, up to the beginning of an action.

    Pieces are final: text that may become a tag is held back until more text arrives.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(prefixes)
        self._tags = (*prefixes, *THINK_TAGS)
        self._text = ""
        self._sent = 0

    def feed(self, text: str) -> str:
        """Add text of the turn; return the new reasoning."""
        self._text += text
        return self._unsent(self.extract(self._text[: len(self._text) - self._undecided()]))

    def finish(self, text: str) -> str:
        """The rest of the reasoning, given the whole text of the turn."""
        return self._unsent(self.extract(text))

    def extract(self, text: str) -> str:
        """The reasoning in the whole text of a turn."""
        ends = [place for prefix in self._prefixes if (place := text.find(prefix)) >= 0]
        return _THINK_TAG.sub("", text[: min(ends, default=len(text))]).strip()

    def _unsent(self, thought: str) -> str:
        new = thought[self._sent :]
        self._sent = max(self._sent, len(thought))
        return new

    def _undecided(self) -> int:
        """The length of the longest suffix that may be the beginning of a tag."""
        longest = min(len(self._text), max(map(len, self._tags)) - 1)
        suffixes = (self._text[-length:] for length in range(longest, 0, -1))
        return next((len(suffix) for suffix in suffixes if any(tag.startswith(suffix) for tag in self._tags)), 0)
