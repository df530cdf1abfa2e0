"""Packed rows: token sequences laid end to end without padding, with what each scored token needs.

Suffixes: L tokens of a row, S scored tokens of a row, N packed tokens, T scored tokens of a pack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WEIGHT = "weight"  # the column every row has


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence to train on: its tokens, the places of those that are scored, and columns of numbers for these."""

    ids_L: Tensor
    places_S: Tensor
    columns: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if not len(self.ids_L) or (len(self.places_S) and int(self.places_S[0]) == 0):
            raise ValueError("a row needs tokens, and its first cannot be scored: nothing comes before it")
        for name, column in self.columns.items():
            if column.shape != self.places_S.shape:
                raise ValueError(f"the column {name} has {len(column)} numbers for {len(self.places_S)} scored tokens")

    def with_columns(self, **columns: Tensor) -> "Row":
        return replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Rows as tensors; `before_T` is the place whose prediction is scored, `target_T` the token it should have made.

    `rows` numbers the rows as they were given, `scored` counts the scored tokens of each, `row_T` numbers the row of
    each scored token within the pack.
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
    """A row of plain numbers: `weights` has one a token, 0 where it is only context; columns one a scored token."""
    if len(weights) != len(ids):
        raise ValueError(f"a row of {len(ids)} tokens needs a weight for each, and has {len(weights)}")
    # By numpy, which makes small arrays several times as fast: there is a row of each of a million traces.
    weights_L = np.array(weights, dtype=np.float32)
    places_S = weights_L.nonzero()[0]
    weights_S = torch.from_numpy(weights_L[places_S])
    given = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
    ids_L = torch.from_numpy(np.array(ids, dtype=np.int64))
    return Row(ids_L, torch.from_numpy(places_S), {WEIGHT: weights_S, **given})


def pack(rows: Sequence[Row], tokens: int, device: torch.device) -> Iterator[Pack]:
    """Packs of at most `tokens` tokens (a longer row has one to itself), rows of like length together."""
    return (laid(rows, numbers, device) for numbers in batches([len(each.ids_L) for each in rows], tokens))


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The numbers of the rows of each pack."""
    batch: list[int] = []
    held = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and held + lengths[number] > tokens:
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += lengths[number]
    if batch:
        yield batch


def laid(every: Sequence[Row], numbers: Sequence[int], device: torch.device) -> Pack:
    """The rows of these numbers end to end."""
    rows = [every[number] for number in numbers]
    lengths, scored = [len(each.ids_L) for each in rows], [len(each.places_S) for each in rows]
    starts_R = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    row_T = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(scored))
    ids_N = torch.cat([each.ids_L for each in rows])
    places_T = torch.cat([each.places_S for each in rows]) + starts_R[row_T]
    return Pack(
        rows=tuple(numbers),
        scored=tuple(scored),
        lengths=tuple(lengths),
        ids_N=ids_N.to(device),
        before_T=(places_T - 1).to(device),
        target_T=ids_N[places_T].to(device),
        row_T=row_T.to(device),
        columns={name: torch.cat([each.columns[name] for each in rows]).to(device) for name in rows[0].columns},
    )
