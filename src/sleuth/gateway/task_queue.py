"""The task queue of the trainer: workers pull attempts, report that they are alive, and return rewards.

An attempt is in the queue until exactly one thing ends it: its result, its deadline, the loss of its worker, or the
caller who no longer waits. Whatever a worker sends about it later is refused.
"""

import asyncio
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sleuth.agent.task import Task
from sleuth.errors import FunctionFailed, SleuthError
from sleuth.gateway.assignment import Assignment
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost, describe_deadline
from sleuth.records import Score

RECHECK_SECONDS = 1.0  # requests that waited while this process was busy are read before a worker counts as vanished
REMINDER_SECONDS = 60.0


class UnknownWorker(SleuthError):
    """A request of a worker that is not registered."""


class QueueClosed(SleuthError):
    """A pull after the end of the run."""


class UnknownAttempt(SleuthError):
    """A result of an attempt that does not run at this worker."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: a pull waits at most `poll`; a worker that sent nothing for `silence` has vanished."""

    poll: float = 20.0
    heartbeat: float = 5.0
    silence: float = 30.0


@dataclass(slots=True)
class QueueCounts:
    """How attempts ended; `refused` counts results of attempts that had already ended."""

    added: int = 0
    finished: int = 0
    failed: int = 0
    late: int = 0
    lost: int = 0
    withdrawn: int = 0
    refused: int = 0

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.late + self.lost + self.withdrawn


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt in the queue: `worker` holds it since `taken`; `outcome` ends exactly once."""

    assignment: Assignment
    deadline: float
    added: float
    outcome: "Future[Score | None]" = field(default_factory=Future)
    worker: "WorkerRecord | None" = None
    taken: float = 0.0


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A registered worker: when it last sent something, and the attempts that it holds."""

    id: str
    name: str
    seen: float
    attempts: dict[str, Attempt] = field(default_factory=dict)


class TaskQueue:
    """Attempts that wait for workers or run there; `launch` and the HTTP routes may run in different threads."""

    def __init__(self, timing: Timing | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.timing, self.counts = timing or Timing(), QueueCounts()
        self._clock = clock
        self._lock = threading.RLock()
        self._attempts: dict[str, Attempt] = {}
        self._waiting: deque[Attempt] = deque()
        self._workers: dict[str, WorkerRecord] = {}
        self._reminded, self._closed = 0.0, False
        self._failure: SleuthError | None = None
        self._pulls: deque[tuple[WorkerRecord, Future[Assignment | None]]] = deque()

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        """Wait for a worker to run the task; the deadline starts when a worker takes it."""
        attempt = self.add(task, endpoint, deadline)
        outcome = asyncio.wrap_future(attempt.outcome)
        try:
            while not outcome.done():
                await asyncio.wait({outcome}, timeout=self.patience(attempt))
                if not outcome.done() and self.is_silent(attempt):
                    await asyncio.wait({outcome}, timeout=RECHECK_SECONDS)
                self.check(attempt)
                self._remind(attempt)
            return outcome.result()
        finally:
            self.withdraw(attempt)

    @property
    def workers(self) -> int:
        """The number of registered workers that have not vanished."""
        with self._lock:
            return sum(not self._has_vanished(worker) for worker in self._workers.values())

    @property
    def running(self) -> int:
        """The number of attempts that workers hold."""
        with self._lock:
            return len(self._attempts) - len(self._waiting)

    def add(self, task: Task, endpoint: Endpoint, deadline: float) -> Attempt:
        """Add an attempt, and give it to a worker that waits for one."""
        attempt = Attempt(Assignment(secrets.token_hex(8), task, endpoint), deadline, self._clock())
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self.counts.added += 1
            self._attempts[attempt.assignment.id] = attempt
            self._waiting.append(attempt)
            self._dispatch()
        return attempt

    def fail(self, failure: SleuthError) -> None:
        """End all attempts, now and later, because no worker can ever run them."""
        with self._lock:
            self._failure = failure
            for attempt in list(self._attempts.values()):
                self.counts.failed += 1
                self._end(attempt, failure)

    def patience(self, attempt: Attempt) -> float:
        """Seconds until `check` may find something new about the attempt."""
        with self._lock:
            if attempt.worker is None:
                return self.timing.heartbeat
            now = self._clock()
            ends = min(attempt.taken + attempt.deadline, attempt.worker.seen + self.timing.silence)
            return min(max(ends - now, 0.001), self.timing.heartbeat)

    def is_silent(self, attempt: Attempt) -> bool:
        """Whether a worker holds the attempt and seems to have vanished."""
        with self._lock:
            return attempt.worker is not None and self._has_vanished(attempt.worker)

    def check(self, attempt: Attempt) -> None:
        """End the attempt if it exceeds its deadline or its worker has vanished."""
        with self._lock:
            if attempt.worker is None or attempt.outcome.done():
                return
            if self._clock() >= attempt.taken + attempt.deadline:
                self.counts.late += 1
                self._end(attempt, FunctionFailed(describe_deadline(f"worker {attempt.worker.name}", attempt.deadline)))
            elif self._has_vanished(attempt.worker):
                self._lose(attempt, f"it sent nothing for {self.timing.silence:g} s")

    def withdraw(self, attempt: Attempt) -> None:
        """End the attempt if nothing else did; its worker learns of it with the next heartbeat."""
        with self._lock:
            if attempt.assignment.id in self._attempts:
                self.counts.withdrawn += 1
                attempt.outcome.cancel()
                self._end(attempt, None)

    def register(self, name: str) -> WorkerRecord:
        with self._lock:
            worker = WorkerRecord(secrets.token_hex(8), name, self._clock())
            self._workers[worker.id] = worker
            return worker

    async def pull(self, worker_id: str, seconds: float, count: int = 1) -> list[Assignment]:
        """Return the oldest waiting attempts, at most `count`; if there is none, wait for one."""
        with self._lock:
            if self._closed:
                raise QueueClosed("the run has ended; the next one answers")
            worker = self._seen(worker_id)
            if self._waiting:
                return [self._assign(worker) for _ in range(min(count, len(self._waiting)))]
            pull: Future[Assignment | None] = Future()
            self._pulls.append((worker, pull))
        try:
            async with asyncio.timeout(seconds):
                assignment = await asyncio.wrap_future(pull)
        except TimeoutError:
            assignment = None if pull.cancel() else pull.result()
        except asyncio.CancelledError:
            if not pull.cancel() and (assignment := pull.result()):  # the worker will never read it
                self._put_back(assignment)
            raise
        finally:
            with self._lock:
                self._pulls = deque(each for each in self._pulls if each[1] is not pull)
                worker.seen = self._clock()
        return [] if assignment is None else [assignment]

    def heartbeat(self, worker_id: str, running: Sequence[str], *, stopping: bool = False) -> list[str]:
        """Record that the worker is alive and what it runs; return the attempts that it should stop.

        A worker that is stopping gets no more attempts: its pull ends.
        """
        with self._lock:
            worker = self._seen(worker_id)
            if stopping:
                self._end_pulls(worker)
            # An attempt that was taken a while ago and does not run: the reply to the pull never arrived.
            undelivered = self._clock() - 2 * self.timing.heartbeat
            for attempt in [each for key, each in worker.attempts.items() if key not in running]:
                if attempt.taken < undelivered:
                    self._lose(attempt, "it never received the task")
            return [each for each in running if each not in worker.attempts]

    def finish(self, worker_id: str, attempt_id: str, outcome: Score | FunctionFailed | AttemptLost | None) -> None:
        """End an attempt with what its worker reports; refuse what is not running there."""
        with self._lock:
            worker = self._seen(worker_id)
            attempt = worker.attempts.get(attempt_id)
            if attempt is None:
                self.counts.refused += 1
                raise UnknownAttempt(
                    f"attempt {attempt_id[:40]!r} has ended or was never given to this worker; its result is discarded"
                )
            match outcome:
                case AttemptLost():
                    self._lose(attempt, str(outcome))
                case FunctionFailed():
                    self.counts.failed += 1
                    self._end(attempt, outcome)
                case _:
                    self.counts.finished += 1
                    self._end(attempt, outcome)

    def leave(self, worker_id: str) -> None:
        """Remove a worker; what it still holds is lost."""
        with self._lock:
            worker = self._seen(worker_id)
            self._end_pulls(worker)
            for attempt in list(worker.attempts.values()):
                self._lose(attempt, "it stopped")
            del self._workers[worker.id]

    def dismiss_all(self) -> None:
        """Remove all workers, because their processes have ended."""
        with self._lock:
            for worker_id in list(self._workers):
                self.leave(worker_id)

    def close(self) -> None:
        """End the pulls that wait, and refuse later ones."""
        with self._lock:
            self._closed = True
            for worker in self._workers.values():
                self._end_pulls(worker)

    def _end_pulls(self, worker: WorkerRecord) -> None:
        for pull in [pull for puller, pull in self._pulls if puller is worker]:
            if _claim(pull):
                pull.set_result(None)

    def _remind(self, attempt: Attempt) -> None:
        """Say from time to time that tasks wait in vain."""
        with self._lock:
            now = self._clock()
            if (
                attempt.worker is None
                and not self.workers
                and now >= max(attempt.added, self._reminded) + REMINDER_SECONDS
            ):
                self._reminded = now
                sys.stderr.write(f"sleuth: {len(self._waiting)} tasks wait, and no worker is connected\n")

    def _seen(self, worker_id: str) -> WorkerRecord:
        worker = self._workers.get(worker_id)
        if worker is None:
            raise UnknownWorker(f"worker {worker_id[:40]!r} is unknown here; register again")
        worker.seen = self._clock()
        return worker

    def _has_vanished(self, worker: WorkerRecord) -> bool:
        return self._clock() >= worker.seen + self.timing.silence

    def _dispatch(self) -> None:
        """Give waiting attempts to pulls."""
        while self._waiting and self._pulls:
            worker, pull = self._pulls.popleft()
            if _claim(pull):
                pull.set_result(self._assign(worker))

    def _assign(self, worker: WorkerRecord) -> Assignment:
        attempt = self._waiting.popleft()
        attempt.worker, attempt.taken = worker, self._clock()
        worker.attempts[attempt.assignment.id] = attempt
        return attempt.assignment

    def _put_back(self, assignment: Assignment) -> None:
        with self._lock:
            attempt = self._attempts.get(assignment.id)
            if attempt is not None and attempt.worker is not None:
                del attempt.worker.attempts[assignment.id]
                attempt.worker = None
                self._waiting.appendleft(attempt)
                self._dispatch()

    def _lose(self, attempt: Attempt, what: str) -> None:
        name = attempt.worker.name if attempt.worker else "none"
        self.counts.lost += 1
        self._end(attempt, AttemptLost(f"the worker {name} was lost: {what}"))

    def _end(self, attempt: Attempt, outcome: Score | Exception | None) -> None:
        """Remove the attempt and deliver its outcome, unless it was cancelled."""
        del self._attempts[attempt.assignment.id]
        if attempt.worker is None:
            self._waiting.remove(attempt)
        else:
            del attempt.worker.attempts[attempt.assignment.id]
        if not attempt.outcome.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            attempt.outcome.set_exception(outcome)
        else:
            attempt.outcome.set_result(outcome)


def _claim(pull: "Future[Assignment | None]") -> bool:
    """Whether the pull still waits; from now on it cannot be cancelled."""
    return not pull.done() and pull.set_running_or_notify_cancel()
