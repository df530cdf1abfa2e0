"""Records that the packages exchange: frozen dataclasses with derived properties only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, groupby
from typing import Any

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"  # around the reasoning in the text of a turn


@dataclass(frozen=True, slots=True)
class Question:
    """A question with all accepted answers."""

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
    """A corpus row; `contents` is the title in double quotes, a newline, and the text."""

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
    """A retrieved passage with its score; higher is better."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call; the arguments are JSON values."""

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
        """The queries of `search` or the URLs of `access`; empty for every other tool, and for other arguments."""
        texts = self.arguments.get({"search": "query_list", "access": "urls"}.get(self.name, ""))
        return tuple(texts) if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else ()


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
        """False if something other than the model failed; such trajectories are excluded from means and advantages."""
        return self not in (StopReason.SEARCH_UNAVAILABLE, StopReason.ENGINE_FAILED, StopReason.FUNCTION_FAILED)


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the model and its result; `text` ends at the first stop string.

    `hits` concatenates the hits of all queries, and `counts` has the number of hits per query; an opened page is a hit
    with its URL as id. `formed` is whether the text has the format that the protocol requires. `shown` is the visible
    part of the hits if the token budget cut them, otherwise None. `result` is the text returned by any other tool.
    `segment` is the index of the segment that holds the turn's tokens; None for a turn of another model.
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
    segment: int | None = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One token sequence of an attempt, with the origin of every token.

    `ids` and `sampled` have one entry per token, `logprobs` and `versions` one per sampled token. The first `shared`
    tokens are those of the segment `parent`; they are given here, so that each sampled token trains once. `calls` holds
    the turn and the number of sampled tokens of each model call; if it is empty, each run of sampled tokens is a turn.
    `temperatures` has one entry per sampled token; if it is empty, all were sampled at the task's temperature.
    """

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    role: str = ""
    parent: int | None = None
    shared: int = 0
    calls: tuple[tuple[int, int], ...] = ()
    temperatures: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """The place of a trajectory in a tree of rollouts; the first one of a tree has no parent.

    Its first `shared` tokens are those of the sample `parent` of its group; they are given here, so that each sampled
    token trains once. Its turns begin with those that these tokens contain.
    """

    tree: int
    parent: int | None = None
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at a task: one reward, one or more segments of tokens, and the turns parsed from them.

    There is no segment if the model runs on a server that returns only text. `failure` is the reason why the attempt is
    unusable. `reward` is set if the agent itself computed it, `branch` if the attempt is part of a tree of rollouts.
    """

    question: Question
    group: int
    sample: int
    step: int
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    failure: str | None = None  # why it is unusable, or of an outside agent that failed at a limit of the policy
    reward: "Score | None" = None
    branch: Branch | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of all segments, one after the other."""
        return self._concatenate("ids")

    @property
    def sampled(self) -> tuple[bool, ...]:
        """Whether the model sampled each token of `ids`."""
        return self._concatenate("sampled")

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The logprob of each sampled token."""
        return self._concatenate("logprobs")

    @property
    def versions(self) -> tuple[int, ...]:
        """The weights version of each sampled token."""
        return self._concatenate("versions")

    def _concatenate(self, field: str) -> tuple[Any, ...]:
        parts = [getattr(segment, field) for segment in self.segments]
        return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))

    @property
    def answer(self) -> str | None:
        """The text of the answer, or None if there is none."""
        last = next((turn.action for turn in reversed(self.turns) if turn.segment is not None), None)
        return last.text if isinstance(last, Answer) else None

    @property
    def searches(self) -> int:
        """Number of completed searches; a search with several queries counts once."""
        return self.calls("search")

    def calls(self, tool: str) -> int:
        """Return the number of calls of a tool that returned a result."""
        returned = (turn for turn in self.turns if turn.outcome in (Outcome.FOUND, Outcome.RETURNED))
        return sum(isinstance(turn.action, ToolCall) and turn.action.name == tool for turn in returned)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, the parts to record, and optionally one reward per turn, which is added to the total."""

    total: float
    parts: dict[str, float] = field(default_factory=dict)
    turns: tuple[float, ...] = ()

    @property
    def episode_return(self) -> float:
        """The sum of all rewards of the episode."""
        return self.total + sum(self.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one question with their scores."""

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
    """Encode the origin of each token as runs: [("given", 12), ("sampled", 5), ...]."""
    return [("sampled" if key else "given", len(list(run))) for key, run in groupby(sampled)]
