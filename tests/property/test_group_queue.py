"""What holds of asynchronous training whatever the episodes and steps take: the bound, and that no group is lost."""

from heapq import heappop, heappush
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.train.group_queue import GroupQueue, QueuedGroup

seconds = st.one_of(st.floats(0.01, 2.0), st.sampled_from([0.01, 1.0, 30.0, 500.0]))


class Clockwork:
    """Sampling and training in virtual time; `trained` has the groups of each step."""

    def __init__(
        self, questions: int, staleness: int, steps: int, sampling: list[float], training: list[float]
    ) -> None:
        self.queue = GroupQueue(questions, staleness)
        self.questions, self.staleness, self.steps = questions, staleness, steps
        self._sampling, self._training = sampling, training
        self._running: list[tuple[float, int, QueuedGroup]] = []
        self._drawn = count()
        self.now = self.waited = 0.0
        self.trained: list[list[QueuedGroup]] = []

    def fill(self, version: int) -> None:
        for _ in range(self.queue.room(self.steps - version)):
            group = QueuedGroup(next(self._drawn), version)
            self.queue.add(group)
            heappush(self._running, (self.now + self._sampling[group.id % len(self._sampling)], group.id, group))
        outstanding = len(self.queue.groups) + self.queue.training
        assert outstanding <= (self.staleness + 1) * self.questions

    def finish_until(self, moment: float) -> None:
        while self._running and self._running[0][0] <= moment:
            self.queue.finish(heappop(self._running)[2])

    def run(self) -> None:
        for step in range(self.steps):
            self.fill(step)
            while (taken := self.queue.take(step)) is None:
                assert self._running, "the trainer waits, and nothing is being sampled"
                ended, _, group = heappop(self._running)
                self.waited, self.now = self.waited + max(0.0, ended - self.now), max(self.now, ended)
                self.queue.finish(group)
            self.trained.append(taken)
            self.fill(step)  # while the step trains
            self.now += self._training[step % len(self._training)]
            self.finish_until(self.now)
            self.queue.training = 0


@given(
    questions=st.integers(1, 4),
    staleness=st.integers(0, 4),
    steps=st.integers(1, 25),
    sampling=st.lists(seconds, min_size=1, max_size=20),
    training=st.lists(seconds, min_size=1, max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_no_group_is_older_than_the_bound_and_each_is_trained_once(
    questions: int, staleness: int, steps: int, sampling: list[float], training: list[float]
) -> None:
    run = Clockwork(questions, staleness, steps, sampling, training)
    run.run()
    ages = [step - group.version for step, groups in enumerate(run.trained) for group in groups]
    assert all(0 <= age <= staleness for age in ages)
    assert all(len(groups) == questions for groups in run.trained)
    # Slow groups are waited for, never dropped, and none is sampled that no step needs.
    assert sorted(group.id for groups in run.trained for group in groups) == list(range(steps * questions))
    assert not run.queue.groups


def test_trainer_waits_less_the_more_staleness_is_allowed() -> None:
    """One group in eight takes three times as long."""
    waited = []
    for staleness in (0, 1, 3):
        run = Clockwork(4, staleness, 20, [1.0] * 7 + [3.0], [1.0])
        run.run()
        waited.append(run.waited)
    assert waited[1] <= waited[0] / 2
    assert waited[2] <= waited[0] / 10
