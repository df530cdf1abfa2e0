"""The scheduler: order of service, and correct keys under sharing, eviction and preemption."""

import asyncio
import random
from array import array
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.request import Request
from sleuth.engines.paged.scheduler import OutOfPages, Scheduler, StepPlan

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

    def launch(self, step: StepPlan) -> np.ndarray:
        """The tokens that a step samples, after everybody's own have been written and all of them looked at."""
        for slot, (first, pages) in step.page_updates.items():
            self._table |= {(slot, first + place): page for place, page in enumerate(pages)}
        for chunk in step.chunks:
            self._texts[chunk.request.slot] = list(chunk.request.ids)
            self._write(chunk.request.slot, chunk.start, chunk.end)
        lanes = step.lanes_B.tolist()
        for slot in lanes:
            self._write(slot, self._lengths[slot], self._lengths[slot] + 1)
        for slot in [*lanes, *(chunk.request.slot for chunk in step.chunks)]:
            self._read(slot)
        return np.array([self._say(slot) for slot in step.sampled_slots().tolist()], dtype=np.int64)

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        return self._table[slot, position // PAGE_SIZE], position % PAGE_SIZE

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


class FakeEngine:
    """The engine without a model: it plans, launches, and takes in what was sampled some steps later."""

    def __init__(self, scheduler: Scheduler, ahead: int) -> None:
        self.scheduler, self.device = scheduler, Device()
        self._ahead = ahead
        self._flying: deque[Landing] = deque()

    def step(self) -> None:
        try:
            step = self.scheduler.plan()
        except OutOfPages:
            if self._flying:
                self.land(0)
            else:
                self.scheduler.preempt()
            return
        slots_M = step.sampled_slots()
        self._flying.append((slots_M, self.scheduler.slots.generation_S[slots_M], self.device.launch(step)))
        self.land(self._ahead if len(step.lanes_B) or step.chunks else 0)

    def land(self, ahead: int) -> None:
        slots = self.scheduler.slots
        while len(self._flying) > ahead:
            slots_M, tenants_M, tokens_M = self._flying.popleft()
            there_M = slots.generation_S[slots_M] == tenants_M
            slots_M, tokens_M = slots_M[there_M], tokens_M[there_M]
            slots.record(slots_M, tokens_M, np.zeros(len(slots_M)), 0)
            self.scheduler.remove(list(self._ended(slots_M.tolist())))

    def change_weights(self) -> None:
        self.land(0)
        self.scheduler.restart()
        self.device.weights += 1

    def _ended(self, numbers: Sequence[int]) -> Iterator[Request]:
        slots = self.scheduler.slots
        for slot in numbers:
            row, seen = slots.requests[slot], int(slots.received_S[slot])
            assert row is not None
            if seen == row.max_new or (row.prompt_length + seen) % PAGE_SIZE == 0:
                slots.update(row)
                self.scheduler.register_pages(row)
            if seen == row.max_new:
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

    def row(self, ids: Sequence[int], most: int, order: int = 0) -> Request:
        self._arrived += 1
        future: asyncio.Future[Completion] = self._loop.create_future()
        return Request(array("i", ids), len(ids), Sampling(most), most, 0, (order, self._arrived), None, None, future)


@pytest.fixture
def callers(loop: asyncio.AbstractEventLoop) -> Callers:
    return Callers(loop)


def added(scheduler: Scheduler, rows: Sequence[Request]) -> None:
    for row in rows:
        scheduler.add(row)


def test_an_idle_schedule_plans_nothing() -> None:
    step = Scheduler(4, 2, 64).plan()
    assert len(step.lanes_B) == len(step.sampled_slots()) == len(step.chunks) == 0


def test_the_lowest_orders_are_let_in_first(callers: Callers) -> None:
    scheduler = Scheduler(16, 2, 64)
    rows = [callers.row([n], 4, order) for n, order in enumerate((3, 1, 2, 1))]
    added(scheduler, rows)
    step = scheduler.plan()
    assert step.admitted == [rows[1], rows[3]]
    assert scheduler.waiting == [rows[2], rows[0]]


def test_long_prompts_take_several_steps_and_are_sampled_after_the_last(callers: Callers) -> None:
    scheduler = Scheduler(64, 4, 32)
    long, short = callers.row(range(75), 4), callers.row(range(500, 510), 4)
    added(scheduler, [long, short])
    plans = [scheduler.plan() for _ in range(3)]
    taken = [[(chunk.request, chunk.start, chunk.end) for chunk in step.chunks] for step in plans]
    assert taken == [[(long, 0, 32)], [(long, 32, 64)], [(long, 64, 75), (short, 0, 10)]]
    assert [step.sampled_slots().tolist() for step in plans] == [[], [], [long.slot, short.slot]]


def test_prompts_that_begin_alike_share_pages_from_the_first_step_on(callers: Callers) -> None:
    scheduler = Scheduler(64, 4, 512)
    same = [callers.row(range(40), 4) for _ in range(3)]
    added(scheduler, same)
    step = scheduler.plan()
    assert [(chunk.start, chunk.end) for chunk in step.chunks] == [(0, 40), (32, 40), (32, 40)]
    assert same[0].pages[:2] == same[1].pages[:2] == same[2].pages[:2]
    assert len({row.pages[2] for row in same}) == 3
    assert (scheduler.stats.prefilled, scheduler.stats.reused) == (56, 64)


def test_nobody_is_let_in_who_leaves_no_page_for_each_of_the_others(callers: Callers) -> None:
    scheduler = Scheduler(4, 4, 512)
    first, second = callers.row(range(20), 40), callers.row(range(100, 130), 40)
    added(scheduler, [first, second])
    scheduler.plan()
    assert scheduler.waiting == [second]
    assert scheduler.pages.in_use == 2
    first.finish = Finish.STOP
    scheduler.remove([first])
    assert scheduler.plan().admitted == [second]


def test_nothing_is_drawn_beyond_the_limit(callers: Callers) -> None:
    scheduler = Scheduler(8, 2, 64)
    added(scheduler, [callers.row([1], 3), callers.row([2], 5)])
    counts = [len(scheduler.plan().sampled_slots()) for _ in range(7)]
    assert counts == [2, 2, 2, 1, 1, 0, 0]


def test_the_last_in_order_gives_way_and_loses_no_token(callers: Callers) -> None:
    engine = FakeEngine(Scheduler(4, 2, 64), ahead=0)
    first, last = callers.row(range(10), 50, order=0), callers.row(range(100, 110), 30, order=1)
    added(engine.scheduler, [last, first])
    while engine.scheduler.busy:
        engine.step()
        assert first not in engine.scheduler.waiting
    assert engine.scheduler.stats.preempted >= 1
    assert first.sampled == continued(range(10), 50)
    assert last.sampled == continued(range(100, 110), 30)
    assert engine.scheduler.pages.in_use == 0


def test_whoever_gave_way_finds_its_pages_again_where_nobody_took_them(callers: Callers) -> None:
    engine = FakeEngine(Scheduler(16, 2, 64), ahead=0)
    row = callers.row(range(40), 40)
    engine.scheduler.add(row)
    for _ in range(10):
        engine.step()
    engine.scheduler.preempt()
    assert engine.scheduler.pages.in_use == 0
    prefilled = engine.scheduler.stats.prefilled
    engine.step()
    assert engine.scheduler.stats.prefilled - prefilled == 1


def test_whoever_leaves_the_queue_is_forgotten(callers: Callers) -> None:
    scheduler = Scheduler(16, 1, 64)
    running, waiting, patient = (callers.row([n], 9) for n in range(3))
    added(scheduler, [running, waiting, patient])
    scheduler.plan()
    waiting.future.cancel()
    scheduler.remove([waiting])
    assert scheduler.waiting == [patient]
    assert scheduler.decoding == [running]


def test_after_a_restart_everything_is_computed_again(callers: Callers) -> None:
    engine = FakeEngine(Scheduler(16, 2, 64), ahead=0)
    engine.scheduler.add(callers.row(range(20), 1))
    engine.step()
    assert not engine.scheduler.busy
    added(engine.scheduler, [callers.row(range(20), 20), callers.row(range(20), 20)])
    for _ in range(5):
        engine.step()
    engine.change_weights()
    assert (engine.scheduler.pages.in_use, len(engine.scheduler.waiting)) == (0, 2)
    reused = engine.scheduler.stats.reused
    step = engine.scheduler.plan()
    assert [(chunk.start, chunk.end) for chunk in step.chunks] == [(0, 25), (16, 25)]
    assert engine.scheduler.stats.reused - reused == 16


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_everybody_is_served_from_few_pages_and_none_is_lost(callers: Callers, seed: int, ahead: int) -> None:
    """Requests come and go at random, some begin alike, weights change: every key that is read is the row's own."""
    dice = random.Random(seed)
    engine = FakeEngine(Scheduler(pages=14, slots=6, prefill_tokens=40), ahead)
    known: list[list[int]] = [[1]]
    rows: list[Request] = []
    while len(rows) < 120 or engine.scheduler.busy:
        if len(rows) < 120 and dice.random() < 0.4:
            before = dice.choice(known)[:60]
            ids = dice.choice([before, [*before, *(dice.randrange(1000) for _ in range(dice.randrange(30)))]])
            rows.append(callers.row(ids, dice.randrange(1, 90), order=dice.randrange(3)))
            engine.scheduler.add(rows[-1])
        if rows and dice.random() < 0.05:
            leaving = dice.choice(rows)
            if leaving.finish is None and leaving.future.cancel():
                engine.scheduler.remove([leaving])
        if dice.random() < 0.01:
            engine.change_weights()
        engine.step()
        known += [row.ids.tolist() for row in rows[-1:]]
    assert engine.scheduler.pages.in_use == 0
    assert engine.scheduler.stats.preempted > 0
    assert engine.scheduler.stats.reused > 0
    for row in rows:
        if row.finish is not None:
            assert row.sampled == continued(row.ids[: row.prompt_length], row.max_new)
    assert sum(row.finish is not None for row in rows) > 60
