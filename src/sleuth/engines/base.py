"""The contract of every engine: tokens in, tokens and their logprobs out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

OnTokens = Callable[[Sequence[int]], None]


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    END = "end"
    LENGTH = "length"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample; temperature 0 is greedy, and the same seed gives the same tokens.

    Logprobs of the same tokens may differ in their last digits with what else is in the batch.

    Tokens are drawn from the distribution at that temperature, cut in this order: `top_k` keeps the k likeliest (0:
    all) and those as likely as the last of them; `top_p` keeps the fewest of these whose share of their total reaches
    p, and those as likely as the last; `min_p` keeps what has at least min_p times the probability of the likeliest.
    Logprobs stay those of the whole distribution (at temperature 1 for greedy), whatever is cut.
    """

    max_tokens: int
    temperature: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "seed", "top_k"):
            if not hasattr(number := getattr(self, name), "__index__"):
                raise ValueError(f"{name} is {number!r}, expected a whole number")
        if not isinstance(self.stops, tuple) or not all(isinstance(stop, str) and stop for stop in self.stops):
            raise ValueError(f"the stops are {self.stops!r}, expected a tuple of strings that are not empty")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, expected 1 or more")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"the seed is {self.seed}, expected 0 or more, and less than 2**64")
        if not (isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"the temperature is {self.temperature}, expected 0 or more")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, expected 1 or more, or 0 to keep every token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected more than 0 and at most 1 (which keeps every token)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}, expected at least 0 (which keeps every token) and at most 1")


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled.

    A logprob is log-softmax(logits / temperature) of the sampled token over the whole vocabulary (at temperature 1
    for greedy sampling), and `versions` names the weights that produced each token. The token that completes a stop
    is the last one.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    stop: str | None = None


NOT_FINITE = "the weights, or what they computed, are not finite"  # in the text of an EngineFailure


@dataclass(slots=True, eq=False)
class Session:
    """A caller that comes back for its next turn; lower priorities are served first.

    `in_tool` says whether a tool call is under way that the caller may be waiting for.
    """

    priority: int
    in_tool: Callable[[], bool] = lambda: False


class Engine(Protocol):
    """Generates from token ids; stateless for the caller."""

    def session(self, priority: int) -> AbstractContextManager[Session]:
        """Announces a caller for the length of an episode; an engine may wait for it, or keep its cache by that."""
        ...

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Samples after `ids`; raises EngineFailure when it cannot. `on_tokens` hears new tokens as they come."""
        ...

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        """Swaps weights between decode steps; None where they are shared and have already changed in place."""
        ...

    async def close(self) -> None:
        """Ends what is running and frees what is held."""
        ...
