"""Who is computed next: admission, pages, and what gives way when pages run out.

Suffixes: S slots, B lanes, M sampled rows.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sleuth.engines.paged.board import Board
from sleuth.engines.paged.pages import PAGE, Pages
from sleuth.engines.paged.row import Row


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens `start` to `end` of a row that are known already: to be computed all at once."""

    row: Row
    start: int
    end: int

    @property
    def whole(self) -> bool:
        """Whether it reaches the row's end, so that a token can be sampled after it."""
        return self.end == len(self.row.ids)


@dataclass(slots=True)
class Step:
    """One forward pass: every lane decodes a token, and segments are prefilled beside them.

    `placed` are the pages to enter into the table: by slot the place of the first of them, and all from there on;
    `opened` are the rows that are new in their slots.
    """

    lanes_B: np.ndarray
    segments: list[Segment] = field(default_factory=list)
    opened: list[Row] = field(default_factory=list)
    placed: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    def sampled(self) -> np.ndarray:
        """The slots that get a token, in the order of the sampler: lanes first."""
        whole = [segment.row.slot for segment in self.segments if segment.whole]
        return np.concatenate([self.lanes_B, whole]).astype(np.int64)


@dataclass(slots=True)
class EngineStats:
    """What the engine has done so far, in tokens; preemptions in rows."""

    reused: int = 0
    prefilled: int = 0
    sampled: int = 0
    past_stop: int = 0
    preempted: int = 0


class Shortage(Exception):
    """No page is left for a row that is being decoded."""


class Schedule:
    """Rows in their slots; the lowest orders are served first, and the highest give way.

    A row is first filling (the tokens it comes with are computed, a bounded number a step), then decoding.
    """

    def __init__(self, pages: int, slots: int, prefill_tokens: int) -> None:
        self.pages = Pages(pages)
        self.board = Board(slots)
        self.stats = EngineStats()
        self.waiting: list[Row] = []
        self.filling: list[Row] = []
        self.decoding: list[Row] = []
        self._lanes_B: np.ndarray | None = None
        self._slots = list(range(slots))
        self._prefill_tokens = prefill_tokens
        # By slot the first place whose page is not in the table yet; a plan that ends in a shortage leaves some.
        self._unplaced: dict[int, int] = {}

    @property
    def rows(self) -> Iterable[Row]:
        return (*self.decoding, *self.filling, *self.waiting)

    @property
    def busy(self) -> bool:
        return bool(self.decoding or self.filling or self.waiting)

    def add(self, row: Row) -> None:
        insort(self.waiting, row, key=lambda each: each.order)

    def plan(self) -> Step:
        """The next step, which may be empty; raises Shortage, with nothing lost, when a row has to give way first."""
        board, lanes_B = self.board, self._lanes()
        lanes_B = lanes_B[board.drawn_S[lanes_B] < board.limit_S[lanes_B]]
        for slot in lanes_B[board.computed_S[lanes_B] == board.room_S[lanes_B]].tolist():
            self._turn_page(slot)
        board.computed_S[lanes_B] += 1
        board.drawn_S[lanes_B] += 1
        self.stats.sampled += len(lanes_B)
        step = Step(lanes_B)
        self._fill(step)
        step.placed = self._placed()
        return step

    def settle(self, row: Row) -> None:
        """Makes known what the row's pages hold by now."""
        known = self.board.known(row)
        if known - row.cached >= PAGE:
            self.pages.fill(row.pages, row.ids, row.cached, known)
            row.cached = known - known % PAGE

    def remove(self, rows: Iterable[Row]) -> None:
        """Takes out rows that are over; what their pages hold stays until someone needs the room."""
        rows = list(rows)
        if not rows:
            return
        seated = [row for row in rows if row.slot >= 0]
        for row in seated:
            self._vacate(row, self.board.known(row))
        self._reseat()
        if len(seated) < len(rows):
            # The queue may be long, so it is looked through only when somebody may have left it.
            self.waiting = [row for row in self.waiting if not row.over]

    def give_way(self) -> None:
        """Takes the row with the highest order out of its slot; its tokens are computed again later."""
        last = max((*self.decoding, *self.filling), key=lambda row: row.order)
        self.stats.preempted += 1
        self.board.catch_up(last)
        self._vacate(last, self.board.known(last))
        self._reseat()
        self.add(last)

    def restart(self) -> None:
        """All that is cached was made by other weights: it is forgotten, and computed again for the rows that run."""
        running = [*self.decoding, *self.filling]
        for row in running:
            self.board.catch_up(row)
            self._vacate(row, 0)
        # Waiting first: whoever looks from another thread never finds an engine that seems idle.
        self.waiting = sorted([*self.waiting, *running], key=lambda each: each.order)
        self._reseat()
        self.pages.forget()
        self._slots.sort()

    def _lanes(self) -> np.ndarray:
        if self._lanes_B is None:
            self._lanes_B = np.array([row.slot for row in self.decoding], dtype=np.int64)
        return self._lanes_B

    def _vacate(self, row: Row, computed: int) -> None:
        """Frees the row's slot and pages, of which the first `computed` tokens can be found again."""
        self.board.move_out(row)
        self.pages.release(row.pages, row.ids, computed)
        self._slots.append(row.slot)
        row.slot, row.pages, row.cached = -1, [], 0

    def _reseat(self) -> None:
        """Forgets those that have left their slots."""
        self.decoding = [row for row in self.decoding if row.slot >= 0]
        self.filling = [row for row in self.filling if row.slot >= 0]
        self._lanes_B = None

    def _placed(self) -> dict[int, tuple[int, list[int]]]:
        """What the table lacks of the pages of those who are still in their slots; it is told of them now."""
        unplaced, self._unplaced = self._unplaced, {}
        rows = self.board.rows
        return {slot: (first, row.pages[first:]) for slot, first in unplaced.items() if (row := rows[slot]) is not None}

    def _turn_page(self, slot: int) -> None:
        row = self.board.rows[slot]
        assert row is not None  # noqa: S101  only rows are lanes
        if not self.pages.extend(row.pages, int(self.board.computed_S[slot]) + 1):
            raise Shortage
        self._unplaced.setdefault(slot, len(row.pages) - 1)
        self.board.room_S[slot] = len(row.pages) * PAGE

    def _fill(self, step: Step) -> None:
        """Segments of the rows that are filling, then of those that can be admitted, within the bound."""
        left = self._prefill_tokens
        for row in [*self.filling]:
            left = self._take(row, left, step)
        while left and self.waiting and self._slots and self._admit(self.waiting[0], step):
            left = self._take(self.waiting.pop(0), left, step)

    def _admit(self, row: Row, step: Step) -> bool:
        """Gives the row a slot and all pages of its tokens, where enough are left for the others to go on."""
        pages, found = self.pages.begin(row.ids)
        running = len(self.decoding) + len(self.filling)
        needed = -(-(len(row.ids) + 1) // PAGE) - len(pages)
        if (running and needed + running > self.pages.free) or not self.pages.extend(pages, len(row.ids) + 1):
            self.pages.release(pages, row.ids, found)
            return False
        row.slot, row.pages, row.cached = self._slots.pop(0), pages, found
        self.board.move_in(row)
        self.stats.reused += found
        self._unplaced[row.slot] = 0
        step.opened.append(row)
        self.filling.append(row)
        return True

    def _take(self, row: Row, left: int, step: Step) -> int:
        """Adds the row's next segment to the step; what is left of the bound."""
        start = int(self.board.computed_S[row.slot])
        count = min(left, len(row.ids) - start)
        if not count:
            return left
        segment = Segment(row, start, start + count)
        step.segments.append(segment)
        self.board.computed_S[row.slot] = segment.end
        self.settle(row)
        self.stats.prefilled += count
        if segment.whole:
            self.board.drawn_S[row.slot] += 1
            self.stats.sampled += 1
            self.filling.remove(row)
            self.decoding.append(row)
            self._lanes_B = None
        return left - count
