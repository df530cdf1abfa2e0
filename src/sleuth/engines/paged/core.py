"""Steps one after the other: plan, launch, and look in arrears at what was sampled.

Suffixes: S slots, M sampled rows.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sleuth.engines.base import NOT_FINITE
from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.row import Row
from sleuth.engines.paged.runner import Drawn, Runner
from sleuth.engines.paged.schedule import EngineStats, Schedule, Shortage, Step
from sleuth.engines.paged.watch import Watch
from sleuth.errors import EngineFailure

# Steps launched before the oldest is looked at: enough to keep a GPU busy, few enough to waste little past a stop.
AHEAD = 2


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched: for whom it samples, with which weights, and what comes of it."""

    slots_M: np.ndarray
    tenants_M: np.ndarray
    version: int
    drawn: Drawn


class Core:
    """The engine without callers: one thread at a time steps it. Rows that have news are given to `tell`."""

    def __init__(
        self, runner: Runner, watch: Watch, schedule: "partial[Schedule]", tell: Callable[[Sequence[Row]], None]
    ) -> None:
        self.runner = runner
        self.version = 0
        self.schedule = schedule()
        self._fresh = schedule
        self._watch, self._tell = watch, tell
        self._ahead = AHEAD if runner.device.type == "cuda" else 0
        self._flying: deque[Flight] = deque()

    @property
    def stats(self) -> EngineStats:
        return self.schedule.stats

    @property
    def busy(self) -> bool:
        return bool(self._flying) or self.schedule.busy

    def step(self) -> None:
        """Launches the next step, and looks at the oldest of those that are under way."""
        try:
            step = self.schedule.plan()
        except Shortage:
            # Rows may have finished in what was launched but not looked at; only then does one give way.
            if self._flying:
                self.land()
            else:
                self.schedule.give_way()
            return
        if len(step.lanes_B) or step.segments:
            self._flying.append(self._launch(step))
            self.land(self._ahead)
        else:
            self.land()

    def land(self, ahead: int = 0) -> None:
        """Takes in what was sampled, until no more than `ahead` steps are under way."""
        while len(self._flying) > ahead:
            flight = self._flying.popleft()
            touched = self._take(flight, *flight.drawn.wait())
            self._tell([row for row in touched if row.finish is not None or row.on_tokens is not None])
            self.schedule.remove([row for row in touched if row.finish is not None])

    def reset(self) -> None:
        """The state after a start; rows that were there are lost."""
        for row in self.schedule.rows:
            row.slot = -1
        self._flying.clear()
        stats, self.schedule = self.schedule.stats, self._fresh()
        self.schedule.stats = stats
        self.runner.clear()

    def _launch(self, step: Step) -> Flight:
        board, slots_M = self.schedule.board, step.sampled()
        drawn = self.runner.launch(step, slots_M, board.seed_S[slots_M], board.drawn_S[slots_M] - 1)
        return Flight(slots_M, board.tenant_S[slots_M], self.version, drawn)

    def _take(self, flight: Flight, tokens_M: np.ndarray, logprobs_M: np.ndarray) -> list[Row]:
        """Keeps what a step sampled; the rows to which something happened by it: an end, a whole page, a listener."""
        board, slots_M = self.schedule.board, flight.slots_M
        there_M = board.tenant_S[slots_M] == flight.tenants_M
        if not there_M.all():
            self.stats.past_stop += int((~there_M).sum())
            slots_M, tokens_M, logprobs_M = slots_M[there_M], tokens_M[there_M], logprobs_M[there_M]
        if not np.isfinite(logprobs_M).all():
            broken = logprobs_M[~np.isfinite(logprobs_M)][0]
            raise EngineFailure(f"a logprob is {broken}: {NOT_FINITE}")
        board.land(slots_M, tokens_M, logprobs_M, flight.version)
        seen_M = board.seen_S[slots_M]
        ending_M = self._watch.may_end(board.watch_S[slots_M], tokens_M) | (seen_M == board.limit_S[slots_M])
        turning_M = (board.given_S[slots_M] + seen_M) % PAGE == 0
        touched = np.flatnonzero(ending_M | turning_M | board.heard_S[slots_M])
        return [self._look(slot, ending) for slot, ending in zip(slots_M[touched], ending_M[touched], strict=True)]

    def _look(self, slot: int, ending: bool) -> Row:
        row = self.schedule.board.rows[slot]
        assert row is not None  # noqa: S101  the slot's tenant is the one it was sampled for
        self.schedule.board.catch_up(row)
        self.schedule.settle(row)
        if ending:
            self._watch.judge(row)
        return row
