"""Packed rows: token sequences concatenated without padding, with per-token columns.

Suffixes: L tokens of a row, S scored tokens of a row, N packed tokens, T scored tokens of a pack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WEIGHT = "weight"  # the loss weight, a column that every row has
TEMPERATURE = "temperature"  # the temperature at which a token was sampled, if not all have the same


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence: tokens, positions of scored tokens, and columns with one value per scored token.

    Rows with the same `trajectory` belong together; a row without it stands alone.
    """

    ids_L: Tensor
    positions_S: Tensor
    columns: Mapping[str, Tensor]
    trajectory: int | None = None

    def __post_init__(self) -> None:
        if not len(self.ids_L) or (len(self.positions_S) and int(self.positions_S.min()) == 0):
            raise ValueError("a row needs tokens, and its first token cannot be scored, because nothing precedes it")
        for name, column in self.columns.items():
            if column.shape != self.positions_S.shape:
                raise ValueError(f"column {name} has {len(column)} values for {len(self.positions_S)} scored tokens")

    def key(self, index: int) -> int:
        """Return a number that rows of one trajectory share; `index` is that of the row in its batch."""
        return -1 - index if self.trajectory is None else self.trajectory

    def with_columns(self, **columns: Tensor) -> "Row":
        return replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Several rows as tensors.

    `rows` holds the indices of the rows in the batch, `scored` their numbers of scored tokens, and `row_T` the number
    of each scored token's row, or trajectory, within the pack. The state at `before_T` predicts `target_T`.
    """

    rows: tuple[int, ...]
    scored: tuple[int, ...]
    lengths: tuple[int, ...]
    ids_N: Tensor
    before_T: Tensor
    target_T: Tensor
    row_T: Tensor
    columns: Mapping[str, Tensor]


def row(
    ids: Sequence[int] | NDArray[np.int32],
    weights: Sequence[float] | NDArray[np.float32],
    **columns: Sequence[float],
) -> Row:
    """Build a row from plain numbers: one weight per token (0 for context), one column value per scored token."""
    if len(weights) != len(ids):
        raise ValueError(f"a row of {len(ids)} tokens needs one weight per token, got {len(weights)}")
    # numpy creates small arrays several times faster than torch; an SFT data set has a million rows.
    weights_L = np.array(weights, dtype=np.float32)
    positions_S = weights_L.nonzero()[0]
    weights_S = torch.from_numpy(weights_L[positions_S])
    given = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
    ids_L = torch.from_numpy(np.array(ids, dtype=np.int64))
    return Row(ids_L, torch.from_numpy(positions_S), {WEIGHT: weights_S, **given})


def pack(rows: Sequence[Row], tokens: int, device: torch.device) -> Iterator[Pack]:
    """Yield packs of at most `tokens` tokens, grouping rows by length; a longer row gets a pack of its own."""
    return (concatenate(rows, batch, device) for batch in batch_by_length([len(each.ids_L) for each in rows], tokens))


def batch_by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the row indices of each pack, shortest rows first."""
    batch: list[int] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and total + lengths[index] > tokens:
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += lengths[index]
    if batch:
        yield batch


def concatenate(rows: Sequence[Row], indices: Sequence[int], device: torch.device) -> Pack:
    chosen = [rows[index] for index in indices]
    lengths, scored = [len(each.ids_L) for each in chosen], [len(each.positions_S) for each in chosen]
    starts_R = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    scored_R = torch.tensor(scored)
    numbers: dict[int, int] = {}
    keys = [each.key(index) for index, each in zip(indices, chosen, strict=True)]
    row_R = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
    ids_N = torch.cat([each.ids_L for each in chosen])
    positions_T = torch.cat([each.positions_S for each in chosen]) + starts_R.repeat_interleave(scored_R)
    return Pack(
        rows=tuple(indices),
        scored=tuple(scored),
        lengths=tuple(lengths),
        ids_N=ids_N.to(device),
        before_T=(positions_T - 1).to(device),
        target_T=ids_N[positions_T].to(device),
        row_T=row_R.repeat_interleave(scored_R).to(device),
        columns={name: torch.cat([each.columns[name] for each in chosen]).to(device) for name in chosen[0].columns},
    )
