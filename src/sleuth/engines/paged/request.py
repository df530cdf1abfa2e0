"""A generation request, and the host's view of all slots as arrays.

A step touches every slot. Touching Python objects one by one would take longer than a GPU step, so sampled tokens stay
in a ring buffer until their request ends, fills the ring or streams.

Suffixes: S slots, M sampled slots of a step, R steps of the ring.
"""

import asyncio
from array import array
from dataclasses import dataclass, field

import numpy as np

from sleuth.engines.base import Completion, Finish, OnTokens, Sampling, Session
from sleuth.engines.paged.page_pool import PAGE_SIZE

RING = 256  # steps; requests are updated when they end, and otherwise at least once per ring


@dataclass(slots=True, eq=False)
class Request:
    """A request: the tokens the host has processed, and the pages of their keys and values.

    The tokens are an array of 32-bit integers, which is copied and compared without touching Python objects.
    `max_new` bounds the sampled tokens, `stop_class` is its row in the stop checker's table, and `registered` counts
    the tokens whose pages the pool can find.
    """

    ids: "array[int]"
    prompt_length: int
    sampling: Sampling
    max_new: int
    stop_class: int
    priority: tuple[int, int]
    session: Session | None
    on_tokens: OnTokens | None
    future: "asyncio.Future[Completion]"
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    registered: int = 0
    streamed: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.prompt_length :].tolist()

    @property
    def is_done(self) -> bool:
        """Whether the request is finished, or abandoned by its caller."""
        return self.finish is not None or self.future.done()

    def deliver(self) -> None:
        """Stream new tokens, and complete the future if the request has finished; called in the caller's event loop."""
        # Read before streaming: the engine's thread may finish the request meanwhile, with tokens not streamed yet.
        finish = self.finish
        self._stream()
        if finish is not None and not self.future.done():
            self.future.set_result(
                Completion(tuple(self.sampled), tuple(self.logprobs), tuple(self.versions), finish, self.stop)
            )

    def _stream(self) -> None:
        """Pass new tokens to the callback; an error in the callback ends only this request."""
        new = self.sampled[self.streamed :]
        if self.on_tokens is None or not new or self.future.done():
            return
        self.streamed += len(new)
        try:
            self.on_tokens(new)
        except asyncio.CancelledError:
            self.future.cancel()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        if isinstance(error, StopIteration):
            error = RuntimeError(f"{error!r} was raised")  # a future cannot carry StopIteration
        if not self.future.done():
            self.future.set_exception(error)


class SlotTable:
    """Per slot: tokens computed, tokens launched for sampling, tokens received from the device, and limits."""

    def __init__(self, slots: int) -> None:
        self.requests: list[Request | None] = [None] * slots
        self.computed_S = np.zeros(slots, dtype=np.int64)
        self.capacity_S = np.zeros(slots, dtype=np.int64)
        self.launched_S = np.zeros(slots, dtype=np.int64)
        self.received_S = np.zeros(slots, dtype=np.int64)
        self.max_new_S = np.zeros(slots, dtype=np.int64)
        self.seed_S = np.zeros(slots, dtype=np.uint64)
        self.stop_class_S = np.zeros(slots, dtype=np.int64)
        self.streaming_S = np.zeros(slots, dtype=bool)
        # Incremented when a slot changes hands, to recognise tokens sampled for its previous request.
        self.generation_S = np.zeros(slots, dtype=np.int64)
        self._token_RS = np.zeros((RING, slots), dtype=np.int32)
        self._logprob_RS = np.zeros((RING, slots), dtype=np.float64)
        self._version_R = np.zeros(RING, dtype=np.int64)
        self._steps = 0

    def assign(self, request: Request) -> None:
        """Add a request that has a slot and pages; its first `request.registered` tokens are already computed."""
        slot = request.slot
        self.requests[slot] = request
        self.computed_S[slot] = request.registered
        self.capacity_S[slot] = len(request.pages) * PAGE_SIZE
        self.launched_S[slot] = self.received_S[slot] = len(request.logprobs)
        self.max_new_S[slot] = request.max_new
        self.seed_S[slot] = int(request.sampling.seed)
        self.stop_class_S[slot], self.streaming_S[slot] = request.stop_class, request.on_tokens is not None

    def vacate(self, request: Request) -> None:
        self.requests[request.slot] = None
        self.generation_S[request.slot] += 1

    def computed_tokens(self, request: Request) -> int:
        """Number of processed tokens whose keys and values are cached."""
        return min(int(self.computed_S[request.slot]), len(request.ids))

    def record(self, slots_M: np.ndarray, tokens_M: np.ndarray, logprobs_M: np.ndarray, version: int) -> None:
        """Store the tokens that a step sampled; every step includes every decoding request."""
        self._steps += 1
        place = self._steps % RING
        self._token_RS[place, slots_M] = tokens_M
        self._logprob_RS[place, slots_M] = logprobs_M
        self._version_R[place] = version
        self.received_S[slots_M] += 1

    def update(self, request: Request) -> None:
        """Append the tokens received since the last update."""
        new = int(self.received_S[request.slot]) - len(request.logprobs)
        places = np.arange(self._steps - new + 1, self._steps + 1) % RING
        request.ids.frombytes(self._token_RS[places, request.slot].tobytes())
        request.logprobs += self._logprob_RS[places, request.slot].tolist()
        request.versions += self._version_R[places].tolist()
