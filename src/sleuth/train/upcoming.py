"""Where the next episodes come from: asked for when they are needed, or while the step before them still trains."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from sleuth.train.publish import Publisher
from sleuth.train.rollout import Harvest

Result = TypeVar("Result")
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

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InTurn:
    """Episodes are asked for when they are needed: they are sampled by the weights they train."""

    def __init__(self, sow: Sow) -> None:
        self._sow, self._runner = sow, asyncio.Runner()

    def take(self, step: int, asked: int, last: bool) -> Harvest:  # noqa: ARG002
        return self._runner.run(self._sow(step, asked))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def settle(self) -> None:
        """None is."""

    def forget(self) -> None:
        """Nothing was asked for in advance."""

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

    def take(self, step: int, asked: int, last: bool) -> Harvest:
        if self._pending is None or self._pending[0] != step:
            self.forget()
            self._publisher.publish(step)
            self._pending = (step, self._start(step, asked))
        harvest = self._pending[1].result()
        self._pending = None
        if not last:
            self._publisher.publish(step)
            self._pending = (step + 1, self._start(step + 1, harvest.asked))
        return harvest

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        self.settle()
        return self._thread.submit(self._runner.run, work).result()

    def settle(self) -> None:
        # What it raised is raised when it is taken.
        if self._pending is not None:
            self._pending[1].exception()

    def forget(self) -> None:
        self.settle()
        self._pending = None

    def _start(self, step: int, asked: int) -> Future[Harvest]:
        return self._thread.submit(self._runner.run, self._sow(step, asked))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An event loop is closed where it ran.
        self._thread.submit(self._runner.close)
        self._thread.shutdown()
