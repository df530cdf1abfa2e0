"""The nouns that travel between rooms: frozen, without behaviour beyond reading themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A question with every answer that counts as right."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    data_source: str
    supporting_ids: tuple[str, ...] = ()
    type: str | None = None
    hops: int | None = None
    answerable: bool | None = None
    prompt: tuple[dict[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A corpus row; `contents` is the title in double quotes, a newline, the text."""

    id: str
    contents: str
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.contents.partition("\n")[0].strip('"')

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found, with its score; higher is better."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by name; the arguments are JSON values."""

    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def search(cls, *queries: str) -> "ToolCall":
        return cls("search", {"query_list": list(queries)})

    @classmethod
    def access(cls, *urls: str) -> "ToolCall":
        return cls("access", {"urls": list(urls)})

    @property
    def lookups(self) -> tuple[str, ...]:
        """The queries of `search` or the URLs of `access`; empty for every other tool."""
        key = {"search": "query_list", "access": "urls"}.get(self.name)
        return () if key is None else tuple(self.arguments[key])


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer, which ends the episode."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A turn that is neither a valid tool call nor an answer; the model is shown the reason."""

    reason: str


Action = ToolCall | Answer | Malformed


class Outcome(StrEnum):
    """The result of a turn's action: `found` for search and access, `returned` for every other tool."""

    FOUND = "found"
    RETURNED = "returned"
    ANSWERED = "answered"
    CORRECTED = "corrected"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    OUT_OF_TURNS = "out_of_turns"
    OUT_OF_TOKENS = "out_of_tokens"
    SEARCH_UNAVAILABLE = "search_unavailable"
    ENGINE_FAILED = "engine_failed"
    FUNCTION_FAILED = "function_failed"  # a user's function: a tool, the method, the protocol or the reward

    @property
    def usable(self) -> bool:
        """False where the failure was not the model's: such a trajectory is in no mean and no advantage."""
        return self not in (StopReason.SEARCH_UNAVAILABLE, StopReason.ENGINE_FAILED, StopReason.FUNCTION_FAILED)


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the model and what it led to; `text` ends at the first stop.

    `hits` are those of its queries one after the other, `counts` how many each of them has; a page that was opened is
    a hit with its url as id. `formed` where the text has the form that the protocol asks for. `shown` is what the model
    saw of the hits where the budget cut them, None where it saw them whole. `result` is the text that any other tool
    returned.
    """

    text: str
    action: Action
    outcome: Outcome
    tokens: int
    hits: tuple[Hit, ...] = ()
    counts: tuple[int, ...] = ()
    formed: bool = True
    shown: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode: tokens with their origin, and the turns read from them.

    `ids` and `sampled` have one entry a token; `logprobs` and `versions` have one a sampled token. All are empty where
    the model is behind an address that gives words alone. `failure` says what made the episode unusable.
    """

    question: Question
    group: int
    sample: int
    step: int
    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    failure: str | None = None

    @property
    def answer(self) -> str | None:
        """The text of the answer, or None where the model gave none."""
        last = self.turns[-1].action if self.turns else None
        return last.text if isinstance(last, Answer) else None

    @property
    def searches(self) -> int:
        """Searches carried out; one with several queries is one."""
        return self.calls("search")

    def calls(self, tool: str) -> int:
        """Calls of a tool that returned a result."""
        returned = (turn for turn in self.turns if turn.outcome in (Outcome.FOUND, Outcome.RETURNED))
        return sum(isinstance(turn.action, ToolCall) and turn.action.name == tool for turn in returned)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, the parts to record, and optionally one reward per turn, which is added to the total."""

    total: float
    parts: dict[str, float]
    turns: tuple[float, ...] = ()

    @property
    def episode_return(self) -> float:
        """The sum of all rewards of the episode."""
        return self.total + sum(self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one question with their scores, in sample order."""

    question: Question
    trajectories: tuple[Trajectory, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval."""

    value: float
    low: float
    high: float
    count: int


def run_lengths(sampled: Sequence[bool]) -> list[tuple[str, int]]:
    """The origin of each token as runs: [("given", 12), ("sampled", 5), ...]."""
    return [("sampled" if key else "given", len(list(run))) for key, run in groupby(sampled)]
