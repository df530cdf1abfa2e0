"""Whatever workers do, and in whatever order: each attempt ends exactly once, and nothing counts after its end."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sleuth.agent.task import Task
from sleuth.errors import FunctionFailed
from sleuth.gateway.assignment import Assignment
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost
from sleuth.gateway.task_queue import Attempt, TaskQueue, Timing, UnknownAttempt, UnknownWorker
from sleuth.records import Question, Score

TASK = Task(Question("q", "Who?", (), "test"))
TIMING = Timing(poll=5.0, heartbeat=2.0, silence=10.0)
PLACES = st.integers(0, 1000)


class Workers(RuleBasedStateMachine):
    """Workers that pull, return results, vanish and leave; `held` is what each of them believes that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.queue = TaskQueue(TIMING, clock=lambda: self.now)
        self.attempts: dict[str, Attempt] = {}
        self.held: dict[str, list[str]] = {}
        self.pulls: list[tuple[str, asyncio.Task[list[Assignment]]]] = []
        self.accepted: dict[str, object] = {}

    def settle(self) -> None:
        """Let the event loop deliver what was assigned."""
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        for worker, pull in [each for each in self.pulls if each[1].done()]:
            self.pulls.remove((worker, pull))
            assignments = [] if pull.cancelled() else pull.result()
            self.held[worker] += [assignment.id for assignment in assignments]

    def pick(self, place: int) -> str:
        return list(self.held)[place % len(self.held)]

    @rule()
    def add(self) -> None:
        attempt = self.queue.add(TASK, Endpoint("http://gateway/rollout/r/v1", "key"), 15.0)
        self.attempts[attempt.assignment.id] = attempt
        self.settle()

    @rule()
    def register(self) -> None:
        self.held[self.queue.register("worker").id] = []

    @precondition(lambda self: self.held)
    @rule(place=PLACES, count=st.integers(1, 3))
    def pull(self, place: int, count: int) -> None:
        worker = self.pick(place)
        self.pulls.append((worker, self.loop.create_task(self.queue.pull(worker, 60.0, count))))
        self.settle()

    @precondition(lambda self: self.pulls)
    @rule(place=PLACES, adds=st.booleans())
    def disconnect(self, place: int, adds: bool) -> None:
        """The connection of a pull breaks, perhaps just when an attempt was assigned to it."""
        _, pull = self.pulls.pop(place % len(self.pulls))
        if adds:
            attempt = self.queue.add(TASK, Endpoint("http://gateway/rollout/r/v1", "key"), 15.0)
            self.attempts[attempt.assignment.id] = attempt
        pull.cancel()
        self.settle()

    @precondition(lambda self: self.held and self.attempts)
    @rule(place=PLACES, which=PLACES, kind=st.sampled_from(["reward", "error", "lost"]))
    def finish(self, place: int, which: int, kind: str) -> None:
        """A result of any attempt from any worker: accepted only where it runs."""
        worker, name = self.pick(place), list(self.attempts)[which % len(self.attempts)]
        outcomes: dict[str, Score | FunctionFailed | AttemptLost] = {
            "reward": Score(1.0),
            "error": FunctionFailed("it raised"),
            "lost": AttemptLost("it was killed"),
        }
        running = self.attempts[name].worker
        expected = running is not None and running.id == worker and not self.attempts[name].outcome.done()
        try:
            self.queue.finish(worker, name, outcomes[kind])
        except UnknownAttempt:
            assert not expected
        else:
            assert expected
            assert name not in self.accepted
            self.accepted[name] = outcomes[kind]
            self.held[worker].remove(name)

    @precondition(lambda self: self.held)
    @rule(place=PLACES, forgets=st.booleans(), stopping=st.booleans())
    def heartbeat(self, place: int, forgets: bool, stopping: bool) -> None:
        worker = self.pick(place)
        running = [] if forgets else self.held[worker]
        for stopped in self.queue.heartbeat(worker, running, stopping=stopping):
            assert self.attempts[stopped].outcome.done()
            self.held[worker].remove(stopped)
        self.settle()
        assert not (stopping and any(puller == worker for puller, _ in self.pulls))

    @precondition(lambda self: self.held)
    @rule(place=PLACES)
    def leave(self, place: int) -> None:
        worker = self.pick(place)
        self.queue.leave(worker)
        assert all(self.attempts[name].outcome.done() for name in self.held.pop(worker))
        self.held[worker] = []  # a pull that ends now brings nothing
        self.settle()
        assert self.held.pop(worker) == []
        assert not any(puller == worker for puller, _ in self.pulls)

    @rule(seconds=st.floats(0.1, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for attempt in self.attempts.values():
            self.queue.check(attempt)

    @precondition(lambda self: self.attempts)
    @rule(which=PLACES)
    def withdraw(self, which: int) -> None:
        self.queue.withdraw(list(self.attempts.values())[which % len(self.attempts)])

    @invariant()
    def no_attempt_waits_beside_a_pull(self) -> None:
        waiting = [each for each in self.attempts.values() if each.worker is None and not each.outcome.done()]
        assert not (waiting and self.pulls)

    @invariant()
    def every_attempt_is_accounted_for(self) -> None:
        counts = self.queue.counts
        ended = [attempt for attempt in self.attempts.values() if attempt.outcome.done()]
        assert (counts.added, counts.ended) == (len(self.attempts), len(ended))
        for name, outcome in self.accepted.items():
            future = self.attempts[name].outcome
            assert (future.result() == outcome) if isinstance(outcome, Score) else future.exception() is not None

    def teardown(self) -> None:
        for attempt in self.attempts.values():
            self.queue.withdraw(attempt)
        self.every_attempt_is_accounted_for()
        assert self.queue.counts.added == self.queue.counts.ended
        assert self.queue.counts.finished == sum(isinstance(each, Score) for each in self.accepted.values())
        for _, pull in self.pulls:
            pull.cancel()
        self.settle()
        self.loop.close()


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("what", ["heartbeat", "finish", "leave"])
def test_unknown_worker_is_told_to_register(what: str) -> None:
    queue = TaskQueue(TIMING)
    asks: dict[str, Callable[[], object]] = {
        "heartbeat": lambda: queue.heartbeat("gone", []),
        "finish": lambda: queue.finish("gone", "a", None),
        "leave": lambda: queue.leave("gone"),
    }
    with pytest.raises(UnknownWorker, match="register"):
        asks[what]()
