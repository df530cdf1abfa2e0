"""Token log: the advantage, loss weight and probability ratios of each trajectory of a step, for the viewer.

Suffixes: S scored tokens of a trajectory, T scored tokens of a pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from torch import Tensor

from sleuth.model.packing import WEIGHT, Pack, Row
from sleuth.records import Trajectory
from sleuth.train.ranks import Ranks

DECIMALS = 5  # of ratios and advantages

LoggedRow = dict[str, float | list[float | None] | None]


@dataclass(slots=True)
class TokenLog:
    """Collects the values of a step; ratios stay on the device until an update is finished."""

    _trajectories: list[Trajectory] = field(default_factory=list)
    _rows: list[Row] = field(default_factory=list)
    _weights: dict[int, Tensor] = field(default_factory=dict)
    _ratios: dict[int, Tensor] = field(default_factory=dict)
    _pending: list[tuple[tuple[int, ...], tuple[int, ...], Tensor]] = field(default_factory=list)

    def start(self, trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> None:
        """Begin a step; the rows have advantages."""
        self._trajectories, self._rows = list(trajectories), list(rows)
        self._weights, self._ratios, self._pending = {}, {}, []

    def set_weights(self, rows: Sequence[Row]) -> None:
        """Record the loss weights of the rows of an update."""
        self._weights |= {_key(row): row.columns[WEIGHT] for row in rows}

    def add_ratios(self, packed: Pack, log_ratio_T: Tensor) -> None:
        """Record the log ratios of a pack: new minus old log-probabilities."""
        if packed.rows:
            self._pending.append((packed.rows, packed.scored, log_ratio_T.detach()))

    def finish_update(self, rows: Sequence[Row], ranks: Ranks) -> None:
        """Gather the ratios of an update over these rows from all ranks."""
        mine: list[tuple[int, Tensor]] = []
        for indices, scored, log_ratio_T in self._pending:
            parts = log_ratio_T.float().exp().cpu().split(scored)
            # Pickling a view of a tensor would send the whole tensor to the other ranks.
            mine += [(index, part.clone()) for index, part in zip(indices, parts, strict=True)]
        self._pending = []
        for theirs in ranks.gather(mine, "the ratios of an update"):
            self._ratios |= {_key(rows[index]): ratio_S for index, ratio_S in theirs}

    def collect(self) -> dict[int, LoggedRow]:
        """Return the record of each trajectory by its id(), and reset; empty if nothing was learned."""
        found: dict[int, LoggedRow] = {
            id(trajectory): {
                "advantage": _compact(row.columns["advantage"], DECIMALS),
                "weight": _compact(self._weights.get(_key(row)), None),
                "ratio": _to_list(self._ratios.get(_key(row)), DECIMALS),
            }
            for trajectory, row in zip(self._trajectories, self._rows, strict=True)
        }
        self.start((), ())
        return found


def _key(row: Row) -> int:
    """Rows are replaced when they gain columns; their token tensor stays the same."""
    return id(row.ids_L)


def _compact(column_S: Tensor | None, decimals: int | None) -> float | list[float | None] | None:
    """A single number if all tokens have the same value."""
    if column_S is None or not len(column_S):
        return None
    if bool((column_S == column_S[0]).all()):
        (value,) = _to_list(column_S[:1], decimals) or [None]
        return value
    return _to_list(column_S, decimals)


def _to_list(column_S: Tensor | None, decimals: int | None) -> list[float | None] | None:
    """Numbers for JSON; None for values that are not finite."""
    if column_S is None:
        return None
    wide_S = column_S.double()
    values = (wide_S if decimals is None else wide_S.round(decimals=decimals)).tolist()
    return [value if isfinite(value) else None for value in values]
