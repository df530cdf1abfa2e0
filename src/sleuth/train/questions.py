"""The questions of each step: a pure function of seed and step, so that a resumed run asks what it would have asked."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sleuth.records import Question


@dataclass(frozen=True, slots=True)
class QuestionStream:
    """Every question once an epoch, in an order drawn anew for each epoch unless `shuffle` is off."""

    questions: Sequence[Question]
    per_step: int
    seed: int
    shuffle: bool

    def at(self, step: int) -> list[Question]:
        """The questions of a step, counted from 0; a step may reach into the next epoch."""
        first = step * self.per_step
        return [self._at(place) for place in range(first, first + self.per_step)]

    def _at(self, place: int) -> Question:
        epoch, within = divmod(place, len(self.questions))
        return self.questions[_order(len(self.questions), self.seed, epoch)[within] if self.shuffle else within]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
