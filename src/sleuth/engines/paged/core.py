"""The engine core: plans and launches steps, and processes sampled tokens with a delay of a few steps.

Suffixes: S slots, M sampled slots, C stop classes (distinct sets of stop strings), V vocabulary.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from transformers import PreTrainedModel

from sleuth.engines.base import NOT_FINITE, Finish
from sleuth.engines.paged.model_runner import ModelRunner, PendingSamples
from sleuth.engines.paged.request import RING, Request
from sleuth.engines.paged.scheduler import OutOfPages, Scheduler
from sleuth.errors import EngineFailure
from sleuth.model.tokens import StopStrings, Tokens

# Steps launched before the oldest is processed: enough to keep a GPU busy, few enough to waste little past a stop.
LAUNCH_AHEAD = 2


class StopChecker:
    """Ends requests at a stop string, an end-of-sequence token, or their token limit.

    A table of tokens that may end a request of each stop class lets one lookup cover a whole step.
    """

    def __init__(self, model: PreTrainedModel, tokens: Tokens | None) -> None:
        self._stops = StopStrings(tokens) if tokens is not None else None
        eos_ids = getattr(model.generation_config, "eos_token_id", None)
        candidates = [*eos_ids] if isinstance(eos_ids, list) else [eos_ids]
        if tokens is not None:
            candidates.append(tokens.eos_id)
        self._eos_ids = frozenset(token for token in candidates if isinstance(token, int))
        self._vocabulary = model.config.vocab_size
        self._classes: dict[tuple[str, ...], int] = {}
        self._users: Counter[int] = Counter()
        self.may_end_CV = np.zeros((0, self._vocabulary), dtype=bool)
        self._table_row = lru_cache(maxsize=64)(self._make_table_row)

    def acquire(self, stops: tuple[str, ...]) -> int:
        """Return the stop class of these stop strings; pair with `release`."""
        if stops and self._stops is None:
            raise EngineFailure("stop strings need a tokenizer; pass `tokens` to the engine")
        if stops not in self._classes:
            row_V, rows = self._table_row(stops), len(self.may_end_CV)
            free = next((each for each in range(rows) if each not in self._users), rows)
            # A new table, because a step may be reading the old one.
            self.may_end_CV = np.concatenate([self.may_end_CV[:free], row_V[None], self.may_end_CV[free + 1 :]])
            self._classes[stops] = free
        stop_class = self._classes[stops]
        self._users[stop_class] += 1
        return stop_class

    def release(self, stop_class: int) -> None:
        """Release one use of a stop class; its table row is freed after the last use."""
        self._users[stop_class] -= 1
        if not self._users[stop_class]:
            del self._users[stop_class]
            self._classes = {stops: each for stops, each in self._classes.items() if each != stop_class}

    def check(self, request: Request) -> None:
        """Set the finish reason of a request if its newest token ends the completion."""
        if self._stops is not None:
            request.stop = self._stops.match(request.ids, request.prompt_length, request.sampling.stops)
        if request.stop is not None:
            request.finish = Finish.STOP
        elif request.ids[-1] in self._eos_ids:
            request.finish = Finish.END
        elif len(request.logprobs) == request.sampling.max_tokens:
            request.finish = Finish.LENGTH
        elif len(request.logprobs) == request.max_new:
            request.finish = Finish.CONTEXT

    def _make_table_row(self, stops: tuple[str, ...]) -> np.ndarray:
        ending = self._eos_ids | (self._stops.candidate_ids(stops) if self._stops is not None else frozenset())
        row_V = np.zeros(self._vocabulary, dtype=bool)
        row_V[[token for token in ending if token < self._vocabulary]] = True
        return row_V


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A launched step: its sampled slots, its weight version, and its pending results."""

    slots_M: np.ndarray
    generations_M: np.ndarray
    version: int
    samples: PendingSamples


class EngineCore:
    """The engine without its async interface, stepped by one thread at a time; `on_progress` is called with updates."""

    def __init__(
        self,
        runner: ModelRunner,
        stop_checker: StopChecker,
        new_scheduler: "partial[Scheduler]",
        on_progress: Callable[[Sequence[Request]], None],
    ) -> None:
        self.runner = runner
        self.version = 0
        self.scheduler = new_scheduler()
        self._new_scheduler = new_scheduler
        self._stop_checker, self._on_progress = stop_checker, on_progress
        self._ahead = LAUNCH_AHEAD if runner.device.type == "cuda" else 0
        self._in_flight: deque[InFlightStep] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._in_flight) or self.scheduler.busy

    def step(self) -> None:
        """Launch the next step and process the oldest step in flight."""
        try:
            plan = self.scheduler.plan()
        except OutOfPages:
            # Requests in flight may have finished; preempt only when there are none.
            if self._in_flight:
                self.receive()
            else:
                self.scheduler.preempt()
            return
        if len(plan.lanes_B) or plan.chunks:
            slots, slots_M = self.scheduler.slots, plan.sampled_slots()
            samples = self.runner.launch(plan, slots_M, slots.seed_S[slots_M], slots.launched_S[slots_M] - 1)
            self._in_flight.append(InFlightStep(slots_M, slots.generation_S[slots_M], self.version, samples))
            self.receive(self._ahead)
        else:
            self.receive()

    def receive(self, ahead: int = 0) -> None:
        """Process sampled tokens until at most `ahead` steps are in flight."""
        while len(self._in_flight) > ahead:
            step = self._in_flight.popleft()
            touched = self._process(step, *step.samples.wait())
            self._on_progress([each for each in touched if each.finish is not None or each.on_tokens is not None])
            self.scheduler.remove([each for each in touched if each.finish is not None])

    def reset(self) -> None:
        """Reset to the initial state and drop all requests."""
        for request in self.scheduler.requests:
            request.slot = -1
        self._in_flight.clear()
        stats, self.scheduler = self.scheduler.stats, self._new_scheduler()
        self.scheduler.stats = stats
        self.runner.reset()

    def _process(self, step: InFlightStep, tokens_M: np.ndarray, logprobs_M: np.ndarray) -> list[Request]:
        """Record a step's tokens; return the requests that may have ended, filled the ring, or are streaming."""
        slots, slots_M = self.scheduler.slots, step.slots_M
        current_M = slots.generation_S[slots_M] == step.generations_M
        if not current_M.all():
            self.scheduler.stats.past_stop += int((~current_M).sum())
            slots_M, tokens_M, logprobs_M = slots_M[current_M], tokens_M[current_M], logprobs_M[current_M]
        if not np.isfinite(logprobs_M).all():
            broken = logprobs_M[~np.isfinite(logprobs_M)][0]
            raise EngineFailure(f"a logprob is {broken}: {NOT_FINITE}")
        slots.record(slots_M, tokens_M, logprobs_M, step.version)
        received_M = slots.received_S[slots_M]
        ending_M = self._stop_checker.may_end_CV[slots.stop_class_S[slots_M], tokens_M]
        ending_M = ending_M | (received_M == slots.max_new_S[slots_M])
        touched = np.flatnonzero(ending_M | (received_M % RING == 0) | slots.streaming_S[slots_M])
        requests = []
        for slot, ending in zip(slots_M[touched], ending_M[touched], strict=True):
            request = slots.requests[slot]
            assert request is not None  # noqa: S101  the slot still has the request it was sampled for
            slots.update(request)
            self.scheduler.register_pages(request)
            if ending:
                self._stop_checker.check(request)
            requests.append(request)
        return requests
