"""Asynchronous rollouts: groups are sampled while the trainer updates, and a bound limits how old their tokens may be.

The schedules of `train.mode` differ in that bound, the staleness: `sync` is 0 and `ahead` is 1. These two collect whole
steps, in one batch of the engine and by one version each, which makes them repeatable bit for bit. With `async`, each
group starts as soon as the bound allows, and takes up new weights between two decode steps.

Each rank samples an equal share of the groups, with a queue of its own: rank r of n draws every nth question. A step
takes as many groups of every rank, so the bound holds if it holds in each queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from sleuth.errors import Interrupted
from sleuth.runs.interruption import INTERRUPTION
from sleuth.train import guards
from sleuth.train.checkpoint import Progress
from sleuth.train.group_log import GroupLog, LoggedGroups
from sleuth.train.group_queue import GroupQueue, QueuedGroup, SampledGroup
from sleuth.train.metrics import Timer
from sleuth.train.publish import Publisher
from sleuth.train.ranks import share_signal
from sleuth.train.rollout import (
    POLL_SECONDS,
    OneStepAhead,
    Result,
    RolloutBatch,
    RolloutSampler,
    RolloutSchedule,
    group_by_question,
    raise_interrupts,
    wait_for,
)

FOLDER = "buffer"  # in the run folder: finished groups that are in no checkpoint yet


def schedule_rollouts(sampler: RolloutSampler, publisher: Publisher, folder: Path) -> RolloutSchedule:
    """Create the schedule that `train.mode` selects, for a run in this folder."""
    train = sampler.config.train
    if train.is_streaming:
        return StreamingRollouts(sampler, GroupLog(folder / FOLDER, sampler.ranks.rank))
    return OneStepAhead(sampler.collect, publisher) if train.max_staleness else RolloutSchedule(sampler.collect)


@dataclass(frozen=True, slots=True)
class TakenGroups:
    """The groups of a step on one rank, and the state of its queue after they were taken."""

    groups: list[QueuedGroup]
    replayed: bool  # the step is repeated with the groups on disk
    ready: int
    next: int  # the position of the question stream that the rank draws next
    untrained: tuple[int, ...]
    idle: float  # seconds without sampling since the step before
    reward: float  # seconds of scoring, summed over groups


def stream_state(every: Sequence[TakenGroups]) -> tuple[int, tuple[int, ...]]:
    """Return how many positions the ranks have drawn between them, and which of these are in no step yet.

    A rank may have drawn less than another, which replaced more groups: positions that it has skipped are untrained.
    """
    world = len(every)
    drawn = max(each.next for each in every) - world + 1
    skipped = chain.from_iterable(range(each.next, drawn, world) for each in every)
    return drawn, tuple(sorted(chain(skipped, *(each.untrained for each in every))))


class StreamingRollouts(RolloutSchedule):
    """Samples groups in a thread of its own; its state is only used in the event loop of that thread."""

    def __init__(self, sampler: RolloutSampler, log: GroupLog) -> None:
        super().__init__(sampler.collect)
        train = sampler.config.train
        self._sampler, self._log, self._steps, self._resample = sampler, log, train.steps, train.resample
        self._episodes, self._ranks, self._curriculum = sampler.runner, sampler.ranks, sampler.stream.curriculum
        # Upper bound on the positions drawn between two steps, by all ranks.
        self._margin = (train.max_staleness + 2) * train.questions * (1 + train.resample)
        self._queue = GroupQueue(train.questions // sampler.ranks.world, train.max_staleness)
        self._version = 0
        self._next = 0  # position of the question stream to draw next
        self._unasked: deque[int] = deque()  # positions drawn by an earlier process that did not finish them
        self._replayed: dict[int, list[QueuedGroup]] = {}  # groups of steps after the checkpoint, by step
        self._sampling: set[asyncio.Task[None]] = set()
        self._writing: set[asyncio.Future[None]] = set()
        self._other: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._idle = IdleClock()
        self._timer, self._counters, self._taken_at = Timer(), sampler.counters(), time.monotonic()
        self._thread = ThreadPoolExecutor(1, "episodes")

    def __enter__(self) -> Self:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            self._changed, self._closing = asyncio.Event(), asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await self._closing.wait()

        self._served = self._thread.submit(self._runner.run, serve())
        self._loop = started.result()
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()
        self._loop.call_soon_threadsafe(self._closing.set)
        self._served.result()
        self._thread.submit(self._runner.close).result()  # an event loop is closed in its own thread
        self._thread.shutdown()

    def restore(self, progress: Progress) -> None:
        """Load the finished groups that the checkpoint does not include, and start sampling; collective."""
        if self._curriculum is not None:
            self._curriculum.restore(progress.questions_drawn + self._margin, progress.step, self._ranks)
        logged = self._log.load(self._sampler.stream)
        self._ranks.barrier("the groups on disk")
        wait_for(self._submit(self._restore(progress, logged))).result()

    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:  # noqa: ARG002
        """Return the groups of all ranks for a step; raises Interrupted on every rank if one received a signal."""
        taking = self._submit(self._take(step))
        while wait([taking], timeout=POLL_SECONDS).not_done and INTERRUPTION.signal is None:
            pass
        if INTERRUPTION.signal is None:
            taking.result()  # a failure ends this process at once, and with it the run
        if (number := share_signal(self._ranks)) is not None:
            raise Interrupted(number)
        gathered = self._ranks.gather([taking.result()], f"the groups of step {step + 1}")
        every = [taken for theirs in gathered for taken in theirs]
        if not every[0].replayed:
            self._log.append_step(step + 1, [group.id for taken in every for group in taken.groups])
        batch = self._batch(step, every)
        if self._curriculum is not None:
            first = min((batch.questions_drawn, *batch.untrained))
            self._curriculum.prepare(first, batch.questions_drawn + self._margin, step, self._ranks)
        return batch

    def advance(self, version: int) -> None:
        # On a cluster only rank 0 knows that the workers have the weights, which groups started now are to use.
        self._ranks.barrier(f"the weights of version {version}")

        async def advance() -> None:
            self._version, self._queue.training = version, 0
            self._fill()

        wait_for(self._submit(advance())).result()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine that uses the engine, such as an evaluation, beside the rollouts in flight."""
        with raise_interrupts():
            return wait_for(self._submit(work)).result()

    def discard(self) -> None:
        async def discard() -> None:
            for task in self._sampling:
                task.cancel()
            await asyncio.gather(*self._sampling, *self._writing, return_exceptions=True)
            self._queue.clear()
            self._failure = None

        wait_for(self._submit(discard())).result()
        self._log.clear()

    def cancel(self) -> None:
        def cancel() -> None:
            for task in (*self._sampling, *self._other):
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def prune(self, step: int) -> None:
        self._log.prune(step)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine in the thread's event loop."""
        future: Future[Result] = Future()

        async def run() -> None:
            try:
                future.set_result(await work)
            except BaseException as error:  # also CancelledError: it belongs to the caller
                future.set_exception(error)

        def start() -> None:
            task = self._loop.create_task(run())
            self._other.add(task)
            task.add_done_callback(self._other.discard)

        self._loop.call_soon_threadsafe(start)
        return future

    async def _restore(self, progress: Progress, logged: LoggedGroups) -> None:
        waiting = set(progress.untrained)
        included = {each for each in logged.groups if each < progress.questions_drawn and each not in waiting}
        self._log.mark_trained(included, progress.step)
        groups = {each: group for each, group in logged.groups.items() if each not in included}
        failed = {each for each, group in groups.items() if group.has_failures}
        replayed: dict[int, list[QueuedGroup]] = {}
        step, last = progress.step + 1, max(logged.steps, default=0)
        # The newest step may have stopped the run because of its failures; the steps before passed all guards.
        while (ids := logged.steps.get(step)) and groups.keys() >= set(ids) and (step < last or not failed & set(ids)):
            self._log.mark_trained(ids, step)
            replayed[step] = [groups.pop(each) for each in ids]
            step += 1
        failed &= groups.keys()
        self._log.append_dropped(failed)
        left = sorted((group for each, group in groups.items() if each not in failed), key=lambda group: group.version)
        positions = {position for group in chain(left, *replayed.values()) for position in group.positions}
        drawn = max((progress.questions_drawn, *(position + 1 for position in positions)))
        waiting |= set(range(progress.questions_drawn, drawn))
        unasked = sorted(waiting - positions)
        # All ranks have read the same, whichever ranks wrote it, and deal it out: groups in the order of their
        # versions, so that no rank gets more old ones than its share of the next steps can train on, then positions.
        rank, world = self._ranks.rank, self._ranks.world
        self._replayed = {step: groups[rank::world] for step, groups in replayed.items()}
        for group in left[rank::world]:
            self._queue.add(group)
            if self._is_done(group):
                self._queue.finish(group)
        self._unasked = deque(unasked[(rank - len(left)) % world :: world])
        self._version, self._next = progress.step, drawn + (rank - len(left) - len(unasked)) % world
        self._fill()

    def _pending(self) -> list[QueuedGroup]:
        """All groups of this rank that no step has trained on."""
        return [*self._queue.groups, *(group for groups in self._replayed.values() for group in groups)]

    async def _take(self, step: int) -> TakenGroups:
        """Wait for this rank's groups of a step and take them out of the queue."""
        groups = self._replayed.pop(step + 1, None)
        replayed = groups is not None
        if groups is None:
            while self._failure is not None or (groups := self._queue.take(step)) is None:
                if self._failure is not None:
                    raise self._failure
                self._changed.clear()
                await self._changed.wait()
        self._queue.training = len(groups)
        self._fill()
        untrained = sorted([*self._unasked, *(position for group in self._pending() for position in group.positions)])
        reward = self._timer.collect().get("time/reward", 0.0)
        idle = self._idle.collect()
        return TakenGroups(groups, replayed, self._queue.ready, self._next, tuple(untrained), idle, reward)

    def _fill(self) -> None:
        """Start as many groups as the bound allows; none while steps are repeated with the groups on disk."""
        if self._failure is None and not self._replayed:
            for group in self._queue.groups:
                if group.finished is None and group.sampling is None:  # left by an earlier process
                    self._start(group, self._draw())
            for _ in range(self._queue.room(self._steps - self._version)):
                group = QueuedGroup(self._draw(), self._version)
                self._queue.add(group)
                self._start(group, group.id)
        self._idle.update(bool(self._sampling))
        self._changed.set()

    def _draw(self) -> int:
        if self._unasked:
            return self._unasked.popleft()
        self._next += self._ranks.world
        return self._next - self._ranks.world

    def _start(self, group: QueuedGroup, position: int) -> None:
        group.sampling, group.version = position, min(group.version, self._version)
        task = self._loop.create_task(self._sample(group, position))
        self._sampling.add(task)
        task.add_done_callback(self._end)

    async def _sample(self, group: QueuedGroup, position: int) -> None:
        """Sample the question at a position; a group without reward spread is replaced by that of another question."""
        samples = await self._sampler.sample_group(position, self._episodes, self._timer)
        sampled = SampledGroup(position, tuple(samples))
        if any(each.score is not None for each in samples):  # otherwise a resumed run asks again
            await self._write(group, sampled)
        group.attempts.append(sampled)
        group.sampling = None
        if self._is_done(group):
            self._queue.finish(group)
        else:
            self._start(group, self._draw())

    async def _write(self, group: QueuedGroup, sampled: SampledGroup) -> None:
        """Write a finished group to disk; not cancelled midway, so that no row is written after `discard`."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._log.append_group, group, sampled))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        await asyncio.shield(writing)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._sampling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._idle.update(bool(self._sampling))
        self._changed.set()

    def _is_done(self, group: QueuedGroup) -> bool:
        last = group_by_question(group.attempts[-1].samples)[0]
        return len(group.attempts) > self._resample or self._sampler.is_kept(last)

    def _batch(self, step: int, every: Sequence[TakenGroups]) -> RolloutBatch:
        """Make the batch of a step from the groups of all ranks."""
        queued = [group for taken in every for group in taken.groups]
        attempts = sorted((each for group in queued for each in group.attempts), key=lambda each: each.position)
        # A group knows the step that trains on it only now.
        samples = [
            [replace(one, trajectory=replace(one.trajectory, step=step + 1)) for one in each.samples]
            for each in attempts
        ]
        trajectories = [one.trajectory for each in samples for one in each]
        guards.require_usable(trajectories)
        groups = [group for each in samples for group in group_by_question(each)]
        now, counters, previous = time.monotonic(), self._sampler.counters(), (self._taken_at, self._counters)
        self._taken_at, self._counters = now, counters
        cost = counters.metrics_since(previous[1], every[self._ranks.rank].reward, self._ranks)
        idle, ready = fmean(taken.idle for taken in every), sum(taken.ready for taken in every)
        drawn, untrained = stream_state(every)
        return RolloutBatch(
            trajectories,
            groups,
            [group for group in groups if self._sampler.is_kept(group)],
            drawn,
            max(len(group.attempts) for group in queued),
            max(0.0, now - previous[0] - idle),  # ranks measure their idle time at slightly different moments
            {**cost, "time/rollouts_waiting": idle, "buffer/size": float(ready)},
            untrained,
        )


class IdleClock:
    """Measures how long nothing was sampled, because every group that the bound allows was finished."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0

    def update(self, busy: bool) -> None:
        now = time.monotonic()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = None if busy else now

    def collect(self) -> float:
        """Return the idle seconds since the last call."""
        self.update(self._since is None)
        seconds, self._seconds = self._seconds, 0.0
        return seconds
