"""The queue of asynchronous training: how many groups may be sampled ahead, and which of them a step trains on.

Weights of version t train step t, which makes version t + 1. With a staleness of k, a group that starts at version v is
trained by step v + k. Each step trains on `questions` groups, so the bound holds if, for every version v, the groups
that started at v or earlier fit into the steps up to v + k.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sleuth.evaluate.results import ScoredTrajectory


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """All samples of the question at a position of the question stream, with their scores."""

    position: int
    samples: tuple[ScoredTrajectory, ...]


@dataclass(slots=True, eq=False)
class QueuedGroup:
    """A group to train on; `attempts` ends with it, after groups without reward spread that it replaces.

    `id` is the position of the first attempt, `version` that of the weights when it started, `sampling` the position
    that is being sampled, and `finished` the number of groups that finished before, or None while this one is not.
    """

    id: int
    version: int
    attempts: list[SampledGroup] = field(default_factory=list)
    sampling: int | None = None
    finished: int | None = None

    @property
    def positions(self) -> list[int]:
        """All positions of the question stream that were drawn for it."""
        drawn = [each.position for each in self.attempts]
        return drawn if self.sampling is None else [*drawn, self.sampling]

    @property
    def has_failures(self) -> bool:
        """Whether something other than the model failed in one of its episodes."""
        return any(sample.score is None for each in self.attempts for sample in each.samples)


class GroupQueue:
    """Groups that are being sampled or wait to be trained on; `training` counts those of the step that trains now."""

    def __init__(self, questions: int, staleness: int) -> None:
        self._questions, self._staleness = questions, staleness
        self._groups: list[QueuedGroup] = []
        self._finished = 0
        self.training = 0

    @property
    def groups(self) -> Sequence[QueuedGroup]:
        return self._groups

    @property
    def ready(self) -> int:
        """Number of groups that are finished but not in a step yet."""
        return sum(group.finished is not None for group in self._groups)

    def room(self, steps_left: int) -> int:
        """Return how many groups may start now, with this many steps to go, including one that trains now."""
        ahead = min(self._staleness + 1, steps_left)
        return max(0, ahead * self._questions - len(self._groups) - self.training)

    def add(self, group: QueuedGroup) -> None:
        self._groups.append(group)

    def finish(self, group: QueuedGroup) -> None:
        group.finished, self._finished = self._finished, self._finished + 1

    def take(self, step: int) -> list[QueuedGroup] | None:
        """Return the groups of a step: of the oldest version first, then in the order in which they finished.

        Returns None if too few are finished, or if the step has to wait for an unfinished group to keep the bound.
        """
        ready = [(group.version, group.finished, group) for group in self._groups if group.finished is not None]
        ready.sort(key=lambda each: each[:2])
        chosen = [group for *_, group in ready[: self._questions]]
        if len(chosen) < self._questions:
            return None
        left = [group for group in self._groups if group not in chosen]
        for version in range(step - self._staleness, step):
            older = [group for group in left if group.version <= version]
            steps_left = version + self._staleness - step
            # Waiting helps only if one of these groups is unfinished.
            if len(older) > steps_left * self._questions and any(group.finished is None for group in older):
                return None
        self._groups, self.training = left, len(chosen)
        return chosen

    def clear(self) -> None:
        self._groups, self.training = [], 0
