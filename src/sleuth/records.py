"""The nouns that travel between rooms: frozen, without behaviour beyond reading themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby


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


@dataclass(frozen=True, slots=True, init=False)
class Search:
    """The model asks the search engine, with one query or several at once."""

    queries: tuple[str, ...]

    def __init__(self, *queries: str) -> None:
        object.__setattr__(self, "queries", queries)


@dataclass(frozen=True, slots=True, init=False)
class Access:
    """The model asks for the text of pages."""

    urls: tuple[str, ...]

    def __init__(self, *urls: str) -> None:
        object.__setattr__(self, "urls", urls)


@dataclass(frozen=True, slots=True)
class Answer:
    """The model answers and the episode ends."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The model did nothing of this; `reason` says what is wrong."""

    reason: str


Action = Search | Access | Answer | Malformed


class Outcome(StrEnum):
    """What became of a turn's action."""

    FOUND = "found"
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
    FUNCTION_FAILED = "function_failed"  # a user's function: the method, the protocol or the reward

    @property
    def usable(self) -> bool:
        """False where the failure was not the model's: such a trajectory is in no mean and no advantage."""
        return self not in (StopReason.SEARCH_UNAVAILABLE, StopReason.ENGINE_FAILED, StopReason.FUNCTION_FAILED)


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the model and what it led to; `text` ends at the first stop.

    `hits` are those of its queries one after the other, `counts` how many each of them has; a page that was opened is
    a hit with its url as id. `formed` where the text has the form that the protocol asks for. `shown` is what the model
    saw of the hits where the budget cut them, None where it saw them whole.
    """

    text: str
    action: Action
    outcome: Outcome
    tokens: int
    hits: tuple[Hit, ...] = ()
    counts: tuple[int, ...] = ()
    formed: bool = True
    shown: str | None = None


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
        return sum(turn.outcome is Outcome.FOUND and isinstance(turn.action, Search) for turn in self.turns)


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
