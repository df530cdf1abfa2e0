"""When rollouts are collected: synchronously, or one step ahead while the previous step trains."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sleuth.runs.interruption import INTERRUPTION
from sleuth.train.publish import Publisher
from sleuth.train.rollout import RolloutBatch

Result = TypeVar("Result")
POLL_SECONDS = 0.2

Collect = Callable[[int, int], Coroutine[Any, Any, RolloutBatch]]


class RolloutSchedule(ABC):
    """Provides the rollouts of each step, and runs other coroutines that use the engine."""

    @abstractmethod
    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:
        """The rollouts of a step, starting at this position of the question stream."""

    @abstractmethod
    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run another coroutine while no rollout is in flight."""

    def wait_idle(self) -> None:  # noqa: B027  nothing to do for a schedule without background work
        """Wait until no rollout is in flight, so that the weights may change."""

    def discard(self) -> None:  # noqa: B027
        """Drop rollouts collected for a step that will not happen."""

    def cancel(self) -> None:  # noqa: B027
        """Cancel rollouts in flight because the run ends with an error or an interrupt."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Close the event loop."""


class Synchronous(RolloutSchedule):
    """Collects rollouts when they are needed, with the weights that they will train; nothing runs in the background."""

    def __init__(self, collect: Collect) -> None:
        self._collect, self._runner = collect, asyncio.Runner()

    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:  # noqa: ARG002
        return self.run(self._collect(step, questions_drawn))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        with _raise_interrupts():
            return self._runner.run(work)

    def __exit__(self, *error: object) -> None:
        self._runner.close()


class OneStepAhead(RolloutSchedule):
    """Collects the rollouts of the next step in a thread while a step trains; they are one version old."""

    def __init__(self, collect: Collect, publisher: Publisher) -> None:
        self._collect, self._publisher = collect, publisher
        self._thread = ThreadPoolExecutor(1, "episodes")
        self._runner = asyncio.Runner()
        self._pending: tuple[int, Future[RolloutBatch]] | None = None
        # The newest work of the thread and its task, which signals do not reach.
        self._running: tuple[Future[Any], Future[asyncio.Task[Any]]] | None = None

    def next_batch(self, step: int, questions_drawn: int, last: bool) -> RolloutBatch:
        if self._pending is None or self._pending[0] != step:
            self.discard()
            self._publisher.publish(step)
            self._pending = (step, self._submit(self._collect(step, questions_drawn)))
        with _raise_interrupts():
            batch = _wait(self._pending[1]).result()
        self._pending = None
        if not last:
            self._publisher.publish(step)
            self._pending = (step + 1, self._submit(self._collect(step + 1, batch.questions_drawn)))
        return batch

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        self.wait_idle()
        with _raise_interrupts():
            return _wait(self._submit(work)).result()

    def wait_idle(self) -> None:
        if self._pending is not None:
            _wait(self._pending[1])  # its error, if any, is raised by next_batch

    def discard(self) -> None:
        self.wait_idle()
        self._pending = None

    def cancel(self) -> None:
        if self._running is None:
            return
        ended, started = self._running
        task = started.result()
        if not ended.done():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        started: Future[asyncio.Task[Any]] = Future()

        async def run() -> Result:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  a coroutine runs in a task
            started.set_result(task)
            return await work

        ended = self._thread.submit(self._runner.run, run())
        self._running = (ended, started)
        return ended

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._runner.close)  # an event loop is closed in its own thread
        self._thread.shutdown()


def schedule_rollouts(mode: str, collect: Collect, publisher: Publisher) -> RolloutSchedule:
    """The schedule that `train.mode` names."""
    return OneStepAhead(collect, publisher) if mode == "ahead" else Synchronous(collect)


@contextmanager
def _raise_interrupts() -> Iterator[None]:
    """Raise Interrupted instead of CancelledError if a signal cancelled the work."""
    try:
        yield
    except asyncio.CancelledError:
        INTERRUPTION.raise_if_interrupted()
        raise


def _wait(future: Future[Result]) -> Future[Result]:
    """Wait in slices: Python handles signals in the main thread, and a signal to another thread does not wake it."""
    while wait([future], timeout=POLL_SECONDS).not_done:
        pass
    return future
