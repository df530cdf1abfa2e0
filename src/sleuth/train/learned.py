"""What a step made of its trajectories, for the record: advantage and weight of each, and the ratios an update saw.

Suffixes: S scored tokens of a trajectory, T those of a pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from torch import Tensor

from sleuth.records import Trajectory
from sleuth.train.packing import WEIGHT, Pack, Row
from sleuth.train.ranks import Ranks

PLACES = 5  # decimals that are kept of a ratio or an advantage

Kept = dict[str, float | list[float | None] | None]


@dataclass(slots=True)
class Learned:
    """Collects during a step, until it is taken; figures stay on the device until an update is over."""

    _trajectories: list[Trajectory] = field(default_factory=list)
    _rows: list[Row] = field(default_factory=list)
    _weighed: dict[int, Tensor] = field(default_factory=dict)
    _ratios: dict[int, Tensor] = field(default_factory=dict)
    _seen: list[tuple[tuple[int, ...], tuple[int, ...], Tensor]] = field(default_factory=list)

    def credit(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> None:
        """The trajectories of a step with their rows, which have advantages."""
        self._trajectories, self._rows = list(trajectories), list(rows)
        self._weighed, self._ratios, self._seen = {}, {}, []

    def weigh(self, rows: Sequence[Row]) -> None:
        """The rows of an update with the weights of their tokens in it."""
        self._weighed |= {_key(row): row.columns[WEIGHT] for row in rows}

    def see(self, packed: Pack, apart_T: Tensor) -> None:
        """What an update has found of a pack: the logprobs less the old ones."""
        if packed.rows:
            self._seen.append((packed.rows, packed.scored, apart_T.detach()))

    def settle(self, rows: Sequence[Row], ranks: Ranks) -> None:
        """Ends an update of these rows: what every rank saw of its packs becomes the ratios of the rows."""
        mine: list[tuple[int, Tensor]] = []
        for numbers, scored, apart_T in self._seen:
            parts = apart_T.float().exp().cpu().split(scored)
            # Copies: a part of a tensor travels to other ranks with the whole of it.
            mine += [(number, part.clone()) for number, part in zip(numbers, parts, strict=True)]
        self._seen = []
        for theirs in ranks.gather(mine, "the ratios of an update"):
            self._ratios |= {_key(rows[number]): ratio_S for number, ratio_S in theirs}

    def taken(self) -> dict[int, Kept]:
        """What there is to record of each trajectory, by its identity; empty where nothing was learned."""
        found = {
            id(trajectory): {
                "advantage": _recorded(row.columns["advantage"], PLACES),
                "weight": _recorded(self._weighed.get(_key(row)), None),
                "ratio": _listed(self._ratios.get(_key(row)), PLACES),
            }
            for trajectory, row in zip(self._trajectories, self._rows, strict=True)
        }
        self.credit((), ())
        return found


def _key(row: Row) -> int:
    """Rows gain columns on their way, and keep their tokens."""
    return id(row.ids_L)


def _recorded(column_S: Tensor | None, places: int | None) -> float | list[float | None] | None:
    """One number where all tokens have the same."""
    if column_S is None or not len(column_S):
        return None
    if bool((column_S == column_S[0]).all()):
        (alone,) = _listed(column_S[:1], places) or [None]
        return alone
    return _listed(column_S, places)


def _listed(column_S: Tensor | None, places: int | None) -> list[float | None] | None:
    """Numbers for JSON, which has none that are not finite."""
    if column_S is None:
        return None
    wide_S = column_S.double()
    values = (wide_S if places is None else wide_S.round(decimals=places)).tolist()
    return [value if isfinite(value) else None for value in values]
