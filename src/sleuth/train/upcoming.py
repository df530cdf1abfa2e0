"""Where the next episodes come from: asked for when they are needed, or while the step before them still trains."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from sleuth.runs.interruption import INTERRUPTION
from sleuth.train.publish import Publisher
from sleuth.train.rollout import Harvest

Result = TypeVar("Result")
SLICE = 0.2  # seconds

Sow = Callable[[int, int], Coroutine[Any, Any, Harvest]]


class Upcoming(Protocol):
    """Takes the harvest of a step, and runs whatever else asks the engine."""

    def take(self, step: int, asked: int, last: bool) -> Harvest:
        """The episodes of a step, whose first question is at place `asked`."""
        ...

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of other work, when no episode is under way."""
        ...

    def settle(self) -> None:
        """Waits until no episode is under way: then weights may change."""
        ...

    def forget(self) -> None:
        """Drops episodes of steps that are not going to come."""
        ...

    def cancel(self) -> None:
        """Cancels the episodes under way, for a run that ends by an error or by Ctrl-C."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@contextmanager
def _interrupted() -> Iterator[None]:
    """Work that a signal cancelled is Interrupted."""
    try:
        yield
    except asyncio.CancelledError:
        INTERRUPTION.raise_if_interrupted()
        raise


def _finished(future: Future[Result]) -> Future[Result]:
    """The same future, when it is done.

    Waited for in slices: Python handles signals in the main thread, and one that reaches another does not wake it.
    """
    while wait([future], timeout=SLICE).not_done:
        pass
    return future


class InTurn:
    """Episodes are asked for when they are needed: they are sampled by the weights they train."""

    def __init__(self, sow: Sow) -> None:
        self._sow, self._runner = sow, asyncio.Runner()

    def take(self, step: int, asked: int, last: bool) -> Harvest:  # noqa: ARG002
        return self.run(self._sow(step, asked))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        with _interrupted():
            return self._runner.run(work)

    def settle(self) -> None:
        """None is."""

    def forget(self) -> None:
        """Nothing was asked for in advance."""

    def cancel(self) -> None:
        """No-op: Ctrl-C cancels what runs in the main thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()


class Ahead:
    """While a step trains, the episodes of the next are sampled by the weights from before it: one version old."""

    def __init__(self, sow: Sow, publisher: Publisher) -> None:
        self._sow, self._publisher = sow, publisher
        self._thread = ThreadPoolExecutor(1, "episodes")
        self._runner = asyncio.Runner()
        self._pending: tuple[int, Future[Harvest]] | None = None
        # What runs in the thread, where no signal reaches it.
        self._running: tuple[Future[Any], Future[asyncio.Task[Any]]] | None = None

    def take(self, step: int, asked: int, last: bool) -> Harvest:
        if self._pending is None or self._pending[0] != step:
            self.forget()
            self._publisher.publish(step)
            self._pending = (step, self._start(step, asked))
        with _interrupted():
            harvest = _finished(self._pending[1]).result()
        self._pending = None
        if not last:
            self._publisher.publish(step)
            self._pending = (step + 1, self._start(step + 1, harvest.asked))
        return harvest

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        self.settle()
        with _interrupted():
            return _finished(self._submit(work)).result()

    def settle(self) -> None:
        # What it raised is raised when it is taken.
        if self._pending is not None:
            _finished(self._pending[1])

    def forget(self) -> None:
        self.settle()
        self._pending = None

    def cancel(self) -> None:
        if self._running is None:
            return
        ended, begun = self._running
        # A thread that has yet to take it up does so at once.
        task = begun.result()
        if not ended.done():
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _start(self, step: int, asked: int) -> Future[Harvest]:
        return self._submit(self._sow(step, asked))

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        begun: Future[asyncio.Task[Any]] = Future()

        async def noted() -> Result:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  a coroutine runs in one
            begun.set_result(task)
            return await work

        ended = self._thread.submit(self._runner.run, noted())
        self._running = (ended, begun)
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An event loop is closed where it ran.
        self._thread.submit(self._runner.close)
        self._thread.shutdown()
