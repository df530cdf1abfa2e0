"""Who is computed next; and whatever is shared, dropped or taken away, everybody reads the keys of its own tokens."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.row import Row
from sleuth.engines.paged.schedule import Schedule, Shortage, Step

Landing = tuple[np.ndarray, np.ndarray, np.ndarray]


def following(ids: Sequence[int]) -> int:
    """The token that comes after these, always the same."""
    return hash(tuple(ids)) % 1000


def continued(ids: Sequence[int], count: int) -> list[int]:
    text = list(ids)
    for _ in range(count):
        text.append(following(text))
    return text[len(ids) :]


class Device:
    """Where a page would hold keys and values, it holds what they were made of: weights, and tokens up to their own."""

    def __init__(self) -> None:
        self.weights = 0
        self._table: dict[tuple[int, int], int] = {}
        self._texts: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._memory: dict[tuple[int, int], int] = {}

    def launch(self, step: Step) -> np.ndarray:
        """The tokens that a step samples, after everybody's own have been written and all of them looked at."""
        for slot, (first, pages) in step.placed.items():
            self._table |= {(slot, first + place): page for place, page in enumerate(pages)}
        for segment in step.segments:
            self._texts[segment.row.slot] = list(segment.row.ids)
            self._write(segment.row.slot, segment.start, segment.end)
        lanes = step.lanes_B.tolist()
        for slot in lanes:
            self._write(slot, self._lengths[slot], self._lengths[slot] + 1)
        for slot in [*lanes, *(segment.row.slot for segment in step.segments)]:
            self._read(slot)
        return np.array([self._say(slot) for slot in step.sampled().tolist()], dtype=np.int64)

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        return self._table[slot, position // PAGE], position % PAGE

    def _made_of(self, slot: int, position: int) -> int:
        return hash((self.weights, *self._texts[slot][: position + 1]))

    def _write(self, slot: int, start: int, end: int) -> None:
        for position in range(start, end):
            self._memory[self._place(slot, position)] = self._made_of(slot, position)
        self._lengths[slot] = end

    def _read(self, slot: int) -> None:
        for position in range(self._lengths[slot]):
            assert self._memory[self._place(slot, position)] == self._made_of(slot, position)

    def _say(self, slot: int) -> int:
        self._texts[slot].append(following(self._texts[slot]))
        return self._texts[slot][-1]


class Desk:
    """The engine without a model: it plans, launches, and takes in what was sampled some steps later."""

    def __init__(self, schedule: Schedule, ahead: int) -> None:
        self.schedule, self.device = schedule, Device()
        self._ahead = ahead
        self._flying: deque[Landing] = deque()

    def step(self) -> None:
        try:
            step = self.schedule.plan()
        except Shortage:
            if self._flying:
                self.land(0)
            else:
                self.schedule.give_way()
            return
        slots_M = step.sampled()
        self._flying.append((slots_M, self.schedule.board.tenant_S[slots_M], self.device.launch(step)))
        self.land(self._ahead if len(step.lanes_B) or step.segments else 0)

    def land(self, ahead: int) -> None:
        board = self.schedule.board
        while len(self._flying) > ahead:
            slots_M, tenants_M, tokens_M = self._flying.popleft()
            there_M = board.tenant_S[slots_M] == tenants_M
            slots_M, tokens_M = slots_M[there_M], tokens_M[there_M]
            board.land(slots_M, tokens_M, np.zeros(len(slots_M)), 0)
            self.schedule.remove(list(self._ended(slots_M.tolist())))

    def change_weights(self) -> None:
        self.land(0)
        self.schedule.restart()
        self.device.weights += 1

    def _ended(self, slots: Sequence[int]) -> Iterator[Row]:
        board = self.schedule.board
        for slot in slots:
            row, seen = board.rows[slot], int(board.seen_S[slot])
            assert row is not None
            if seen == row.limit or (row.given + seen) % PAGE == 0:
                board.catch_up(row)
                self.schedule.settle(row)
            if seen == row.limit:
                row.finish = Finish.LENGTH
                yield row


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Callers:
    """Makes requests, in the order of their arrival unless told otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = 0

    def row(self, ids: Sequence[int], most: int, order: int = 0) -> Row:
        self._arrived += 1
        future: asyncio.Future[Completion] = self._loop.create_future()
        return Row(list(ids), len(ids), Sampling(most), most, 0, (order, self._arrived), None, None, future)


@pytest.fixture
def callers(loop: asyncio.AbstractEventLoop) -> Callers:
    return Callers(loop)


def added(schedule: Schedule, rows: Sequence[Row]) -> None:
    for row in rows:
        schedule.add(row)


def test_an_idle_schedule_plans_nothing() -> None:
    step = Schedule(4, 2, 64).plan()
    assert len(step.lanes_B) == len(step.sampled()) == len(step.segments) == 0


def test_the_lowest_orders_are_let_in_first(callers: Callers) -> None:
    schedule = Schedule(16, 2, 64)
    rows = [callers.row([n], 4, order) for n, order in enumerate((3, 1, 2, 1))]
    added(schedule, rows)
    step = schedule.plan()
    assert step.opened == [rows[1], rows[3]]
    assert schedule.waiting == [rows[2], rows[0]]


def test_long_prompts_take_several_steps_and_are_sampled_after_the_last(callers: Callers) -> None:
    schedule = Schedule(64, 4, 32)
    long, short = callers.row(range(75), 4), callers.row(range(500, 510), 4)
    added(schedule, [long, short])
    plans = [schedule.plan() for _ in range(3)]
    taken = [[(segment.row, segment.start, segment.end) for segment in step.segments] for step in plans]
    assert taken == [[(long, 0, 32)], [(long, 32, 64)], [(long, 64, 75), (short, 0, 10)]]
    assert [step.sampled().tolist() for step in plans] == [[], [], [long.slot, short.slot]]


def test_prompts_that_begin_alike_share_pages_from_the_first_step_on(callers: Callers) -> None:
    schedule = Schedule(64, 4, 512)
    same = [callers.row(range(40), 4) for _ in range(3)]
    added(schedule, same)
    step = schedule.plan()
    assert [(segment.start, segment.end) for segment in step.segments] == [(0, 40), (32, 40), (32, 40)]
    assert same[0].pages[:2] == same[1].pages[:2] == same[2].pages[:2]
    assert len({row.pages[2] for row in same}) == 3
    assert (schedule.stats.prefilled, schedule.stats.reused) == (56, 64)


def test_nobody_is_let_in_who_leaves_no_page_for_each_of_the_others(callers: Callers) -> None:
    schedule = Schedule(4, 4, 512)
    first, second = callers.row(range(20), 40), callers.row(range(100, 130), 40)
    added(schedule, [first, second])
    schedule.plan()
    assert schedule.waiting == [second]
    assert schedule.pages.held == 2
    first.finish = Finish.STOP
    schedule.remove([first])
    assert schedule.plan().opened == [second]


def test_nothing_is_drawn_beyond_the_limit(callers: Callers) -> None:
    schedule = Schedule(8, 2, 64)
    added(schedule, [callers.row([1], 3), callers.row([2], 5)])
    counts = [len(schedule.plan().sampled()) for _ in range(7)]
    assert counts == [2, 2, 2, 1, 1, 0, 0]


def test_the_last_in_order_gives_way_and_loses_no_token(callers: Callers) -> None:
    desk = Desk(Schedule(4, 2, 64), ahead=0)
    first, last = callers.row(range(10), 50, order=0), callers.row(range(100, 110), 30, order=1)
    added(desk.schedule, [last, first])
    while desk.schedule.busy:
        desk.step()
        assert first not in desk.schedule.waiting
    assert desk.schedule.stats.preempted >= 1
    assert first.sampled == continued(range(10), 50)
    assert last.sampled == continued(range(100, 110), 30)
    assert desk.schedule.pages.held == 0


def test_whoever_gave_way_finds_its_pages_again_where_nobody_took_them(callers: Callers) -> None:
    desk = Desk(Schedule(16, 2, 64), ahead=0)
    row = callers.row(range(40), 40)
    desk.schedule.add(row)
    for _ in range(10):
        desk.step()
    desk.schedule.give_way()
    assert desk.schedule.pages.held == 0
    prefilled = desk.schedule.stats.prefilled
    desk.step()
    assert desk.schedule.stats.prefilled - prefilled == 1


def test_whoever_leaves_the_queue_is_forgotten(callers: Callers) -> None:
    schedule = Schedule(16, 1, 64)
    running, waiting, patient = (callers.row([n], 9) for n in range(3))
    added(schedule, [running, waiting, patient])
    schedule.plan()
    waiting.future.cancel()
    schedule.remove([waiting])
    assert schedule.waiting == [patient]
    assert schedule.decoding == [running]


def test_after_a_restart_everything_is_computed_again(callers: Callers) -> None:
    desk = Desk(Schedule(16, 2, 64), ahead=0)
    desk.schedule.add(callers.row(range(20), 1))
    desk.step()
    assert not desk.schedule.busy
    added(desk.schedule, [callers.row(range(20), 20), callers.row(range(20), 20)])
    for _ in range(5):
        desk.step()
    desk.change_weights()
    assert (desk.schedule.pages.held, len(desk.schedule.waiting)) == (0, 2)
    reused = desk.schedule.stats.reused
    step = desk.schedule.plan()
    assert [(segment.start, segment.end) for segment in step.segments] == [(0, 25), (16, 25)]
    assert desk.schedule.stats.reused - reused == 16


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_everybody_is_served_from_few_pages_and_none_is_lost(callers: Callers, seed: int, ahead: int) -> None:
    """Requests come and go at random, some begin alike, weights change: every key that is read is the row's own."""
    dice = random.Random(seed)
    desk = Desk(Schedule(pages=14, slots=6, prefill_tokens=40), ahead)
    known: list[list[int]] = [[1]]
    rows: list[Row] = []
    while len(rows) < 120 or desk.schedule.busy:
        if len(rows) < 120 and dice.random() < 0.4:
            before = dice.choice(known)[:60]
            ids = dice.choice([before, [*before, *(dice.randrange(1000) for _ in range(dice.randrange(30)))]])
            rows.append(callers.row(ids, dice.randrange(1, 90), order=dice.randrange(3)))
            desk.schedule.add(rows[-1])
        if rows and dice.random() < 0.05:
            leaving = dice.choice(rows)
            if leaving.finish is None and leaving.future.cancel():
                desk.schedule.remove([leaving])
        if dice.random() < 0.01:
            desk.change_weights()
        desk.step()
        known += [row.ids for row in rows[-1:]]
    assert desk.schedule.pages.held == 0
    assert desk.schedule.stats.preempted > 0
    assert desk.schedule.stats.reused > 0
    for row in rows:
        if row.finish is not None:
            assert row.sampled == continued(row.ids[: row.given], row.limit)
    assert sum(row.finish is not None for row in rows) > 60
