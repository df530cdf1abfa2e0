"""The scheduler: admission, chunked prefill, page allocation, and preemption when pages run out.

Suffixes: S slots, B decoding lanes, M sampled slots.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sleuth.engines.paged.page_pool import PAGE_SIZE, PagePool
from sleuth.engines.paged.request import Request, SlotTable


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Known tokens `start` to `end` of a request, computed in one step."""

    request: Request
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the request's last token, so that a token is sampled."""
        return self.end == len(self.request.ids)


@dataclass(slots=True)
class StepPlan:
    """One forward pass: every lane decodes a token, and chunks are prefilled alongside.

    `page_updates` maps a slot to its new page table entries: the index of the first new entry, and the new pages.
    `admitted` are requests that are new in their slots.
    """

    lanes_B: np.ndarray
    chunks: list[PrefillChunk] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    page_updates: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def sampled_slots(self) -> np.ndarray:
        """Slots for which a token is sampled, lanes first."""
        prefilled = [chunk.request.slot for chunk in self.chunks if chunk.is_last]
        return np.concatenate([self.lanes_B, prefilled]).astype(np.int64)


@dataclass(slots=True)
class EngineStats:
    """Cumulative counts of tokens; `preempted` counts requests."""

    reused: int = 0
    prefilled: int = 0
    sampled: int = 0
    past_stop: int = 0
    preempted: int = 0


class OutOfPages(Exception):
    """Raised when no page is left for a decoding request."""


class Scheduler:
    """Requests in slots; the lowest priority value is served first, the highest is preempted first.

    A request is first prefilling (its known tokens, a bounded number per step), then decoding.
    """

    def __init__(self, pages: int, slots: int, prefill_tokens: int) -> None:
        self.pages = PagePool(pages)
        self.slots = SlotTable(slots)
        self.stats = EngineStats()
        self.waiting: list[Request] = []
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self._lanes_B: np.ndarray | None = None
        self._free_slots = list(range(slots))
        self._prefill_tokens = prefill_tokens
        # Per slot, the index of the first page missing from the device's table; kept if planning raises OutOfPages.
        self._unsent_pages: dict[int, int] = {}

    @property
    def requests(self) -> Iterable[Request]:
        return (*self.decoding, *self.prefilling, *self.waiting)

    @property
    def busy(self) -> bool:
        return bool(self.decoding or self.prefilling or self.waiting)

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=lambda each: each.priority)

    def plan(self) -> StepPlan:
        """Plan the next step, possibly empty; raises OutOfPages, losing no work, if a request must be preempted."""
        slots = self.slots
        if self._lanes_B is None:
            self._lanes_B = np.array([request.slot for request in self.decoding], dtype=np.int64)
        lanes_B = self._lanes_B
        lanes_B = lanes_B[slots.launched_S[lanes_B] < slots.max_new_S[lanes_B]]
        for slot in lanes_B[slots.computed_S[lanes_B] == slots.capacity_S[lanes_B]].tolist():
            request = slots.requests[slot]
            assert request is not None  # noqa: S101  lanes are requests
            if not self.pages.allocate(request.pages, int(slots.computed_S[slot]) + 1):
                raise OutOfPages
            self._unsent_pages.setdefault(slot, len(request.pages) - 1)
            slots.capacity_S[slot] = len(request.pages) * PAGE_SIZE
        slots.computed_S[lanes_B] += 1
        slots.launched_S[lanes_B] += 1
        self.stats.sampled += len(lanes_B)
        plan, budget = StepPlan(lanes_B), self._prefill_tokens
        for prefilling in [*self.prefilling]:
            budget = self._add_chunk(prefilling, budget, plan)
        while budget and self.waiting and self._free_slots and self._admit(self.waiting[0], plan):
            budget = self._add_chunk(self.waiting.pop(0), budget, plan)
        unsent, self._unsent_pages = self._unsent_pages, {}
        plan.page_updates = {
            slot: (first, request.pages[first:])
            for slot, first in unsent.items()
            if (request := slots.requests[slot]) is not None
        }
        return plan

    def register_pages(self, request: Request) -> None:
        """Make the pages that a request has filled findable."""
        computed = self.slots.computed_tokens(request)
        if computed - request.registered >= PAGE_SIZE:
            self.pages.register(request.pages, request.ids, request.registered, computed)
            request.registered = computed - computed % PAGE_SIZE

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove requests that are done; their pages stay cached until the space is needed."""
        requests = list(requests)
        if not requests:
            return
        running = [request for request in requests if request.slot >= 0]
        for request in running:
            self._vacate(request, self.slots.computed_tokens(request))
        self._drop_vacated()
        if len(running) < len(requests):
            # The queue may be long, so it is searched only when needed.
            self.waiting = [request for request in self.waiting if not request.is_done]

    def preempt(self) -> None:
        """Return the running request with the highest priority value to the queue, to be recomputed later."""
        last = max((*self.decoding, *self.prefilling), key=lambda request: request.priority)
        self.stats.preempted += 1
        self.slots.update(last)
        self._vacate(last, self.slots.computed_tokens(last))
        self._drop_vacated()
        self.add(last)

    def restart(self) -> None:
        """Drop all cached pages after a weight update; running requests are recomputed."""
        running = [*self.decoding, *self.prefilling]
        for request in running:
            self.slots.update(request)
            self._vacate(request, 0)
        # Queue them first: the engine must never look idle to another thread.
        self.waiting = sorted([*self.waiting, *running], key=lambda each: each.priority)
        self._drop_vacated()
        self.pages.invalidate()
        self._free_slots.sort()

    def _vacate(self, request: Request, computed: int) -> None:
        """Free the slot and pages of a request; its first `computed` tokens stay findable."""
        self.slots.vacate(request)
        self.pages.release(request.pages, request.ids, computed)
        self._free_slots.append(request.slot)
        request.slot, request.pages, request.registered = -1, [], 0

    def _drop_vacated(self) -> None:
        self.decoding = [request for request in self.decoding if request.slot >= 0]
        self.prefilling = [request for request in self.prefilling if request.slot >= 0]
        self._lanes_B = None

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Give a request a slot and pages for its tokens, if enough pages remain for the running requests."""
        pages, found = self.pages.match_prefix(request.ids)
        running = len(self.decoding) + len(self.prefilling)
        needed = -(-(len(request.ids) + 1) // PAGE_SIZE) - len(pages)
        if (running and needed + running > self.pages.free) or not self.pages.allocate(pages, len(request.ids) + 1):
            self.pages.release(pages, request.ids, found)
            return False
        request.slot, request.pages, request.registered = self._free_slots.pop(0), pages, found
        self.slots.assign(request)
        self.stats.reused += found
        self._unsent_pages[request.slot] = 0
        plan.admitted.append(request)
        self.prefilling.append(request)
        return True

    def _add_chunk(self, request: Request, budget: int, plan: StepPlan) -> int:
        """Add the request's next chunk to the plan and return the remaining budget."""
        start = int(self.slots.computed_S[request.slot])
        count = min(budget, len(request.ids) - start)
        if not count:
            return budget
        chunk = PrefillChunk(request, start, start + count)
        plan.chunks.append(chunk)
        self.slots.computed_S[request.slot] = chunk.end
        self.register_pages(request)
        self.stats.prefilled += count
        if chunk.is_last:
            self.slots.launched_S[request.slot] += 1
            self.stats.sampled += 1
            self.prefilling.remove(request)
            self.decoding.append(request)
            self._lanes_B = None
        return budget - count
