"""What trajectories are wanted: the filters of a list, all of which have to hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sleuth.view.archive import Leaf
from sleuth.view.catalogue import STOPS, Catalogue


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters; one that is None or empty lets everything pass."""

    step_from: int | None = None
    step_to: int | None = None
    question: str | None = None
    source: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    stops: Sequence[str] = ()
    group: int | None = None
    sample: int | None = None
    text: str | None = None

    @property
    def plain(self) -> bool:
        """Whether a row is taken whatever it holds, so that no catalogue is needed."""
        rest = (self.question, self.source, self.reward_min, self.reward_max, self.group, self.sample)
        return not self.stops and all(each is None for each in rest)

    def covers(self, leaf: Leaf) -> bool:
        """Whether the step of a file is wanted."""
        low = self.step_from is None or leaf.step >= self.step_from
        return low and (self.step_to is None or leaf.step <= self.step_to)

    def rows(self, catalogue: Catalogue) -> NDArray[np.int64]:
        """The rows of a file that are wanted, as far as the catalogue tells, ascending."""
        columns = catalogue.columns()
        mask = np.ones(catalogue.rows, dtype=bool)
        if self.question is not None or self.source is not None:
            mask &= np.isin(columns["question"], self._questions(catalogue))
        if self.stops:
            mask &= np.isin(columns["stop"], [STOPS.index(each) for each in self.stops])
        for name in ("group", "sample"):
            if (value := getattr(self, name)) is not None:
                mask &= columns[name] == value
        # A reward that is not recorded lies in no range: a comparison with it is false.
        if self.reward_min is not None:
            mask &= columns["reward"] >= self.reward_min
        if self.reward_max is not None:
            mask &= columns["reward"] <= self.reward_max
        return np.nonzero(mask)[0]

    def _questions(self, catalogue: Catalogue) -> list[int]:
        """The numbers of the questions that are wanted."""
        return [
            number
            for number, (source, question_id, _) in enumerate(catalogue.questions)
            if self.question in (None, question_id) and self.source in (None, source)
        ]
