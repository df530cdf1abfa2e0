"""The contract of every engine: token ids in, token ids and their logprobs out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

OnTokens = Callable[[Sequence[int]], None]  # receives new tokens while they are sampled

NOT_FINITE = "weights or activations are not finite"  # part of an EngineFailure's message


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    END = "end"
    LENGTH = "length"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy, and equal seeds give equal tokens.

    Truncation applies in this order: `top_k` keeps the k likeliest tokens (0: all); `top_p` keeps the fewest of these
    whose total probability reaches p; `min_p` keeps tokens with at least min_p times the highest probability. Ties with
    the last kept token are kept. Logprobs are always those of the untruncated distribution; their last digits may
    depend on the rest of the batch.
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
                raise ValueError(f"{name} is {number!r}, expected an integer")
        if not isinstance(self.stops, tuple) or not all(isinstance(stop, str) and stop for stop in self.stops):
            raise ValueError(f"stops is {self.stops!r}, expected a tuple of non-empty strings")
        for name, valid, expected in (
            ("max_tokens", self.max_tokens >= 1, "1 or more"),
            ("seed", 0 <= self.seed < 2**64, "0 to 2**64 - 1"),
            ("temperature", isfinite(self.temperature) and self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "1 or more, or 0 to keep every token"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1 (which keeps every token)"),
            ("min_p", 0 <= self.min_p <= 1, "at least 0 (which keeps every token) and at most 1"),
        ):
            if not valid:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens, up to and including the token that completes a stop string.

    A logprob is log-softmax(logits / temperature) of the sampled token over the whole vocabulary (at temperature 1 for
    greedy sampling). `versions` holds the version of the weights that sampled each token.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    stop: str | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A caller that returns for further turns; the lowest priority value is served first.

    `in_tool` returns whether the caller may be waiting for a running tool call.
    """

    priority: int
    in_tool: Callable[[], bool] = lambda: False


class Engine(Protocol):
    """Generates from token ids; stateless for the caller."""

    def session(self, priority: int) -> AbstractContextManager[Session]:
        """Open a session for an episode; the engine may keep its prefix cache, or wait for its next request."""
        ...

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        """Sample a continuation of `ids`; raises EngineFailure if generation fails."""
        ...

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        """Switch to new weights between decode steps; None means that shared weights were updated in place."""
        ...

    async def close(self) -> None:
        """End running requests and free all resources."""
        ...
