"""The questions of a run: a pure function of seed and place, so that a resumed run asks what it would have asked."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sleuth.corpus.datasets.merge import key
from sleuth.records import Question


@dataclass(frozen=True, slots=True)
class QuestionStream:
    """Every question once an epoch, in an order drawn anew for each epoch unless `shuffle` is off."""

    questions: Sequence[Question]
    seed: int
    shuffle: bool

    def take(self, first: int, count: int) -> list[Question]:
        """So many questions from a place on, counted from 0; they may reach into the next epoch."""
        return [self._at(place) for place in range(first, first + count)]

    def _at(self, place: int) -> Question:
        epoch, within = divmod(place, len(self.questions))
        return self.questions[_order(len(self.questions), self.seed, epoch)[within] if self.shuffle else within]


def known(learned: Sequence[Question], held_out: Sequence[Question]) -> str | None:
    """What to say where held-out questions are trained on."""
    keys = {key(each.question) for each in learned}
    count = sum(key(each.question) in keys for each in held_out)
    if not count:
        return None
    return (
        f"{count:,} of the {len(held_out):,} held-out questions are trained on too, and measure memory; "
        "leave them out of data.train with: sleuth data prepare --test"
    )


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
