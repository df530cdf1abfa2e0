"""Packed rows: token sequences concatenated without padding, with per-token columns.

Suffixes: L tokens of a row, S scored tokens of a row, N packed tokens, T scored tokens of a pack, E tokens of all rows
of a pack, which are more than N if rows share prefixes.
"""

from collections import defaultdict
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

    Rows with the same `trajectory` belong together; a row without it stands alone. Rows of the same `family` are in one
    pack, in which each of their common prefixes is computed once.
    """

    ids_L: Tensor
    positions_S: Tensor
    columns: Mapping[str, Tensor]
    trajectory: int | None = None
    family: int | None = None

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
    of each scored token's row, or trajectory, within the pack. The state at `before_T` predicts `target_T`. If rows
    share prefixes, `place_E` is the place in `ids_N` of each token of the rows.
    """

    rows: tuple[int, ...]
    scored: tuple[int, ...]
    lengths: tuple[int, ...]
    ids_N: Tensor
    before_T: Tensor
    target_T: Tensor
    row_T: Tensor
    columns: Mapping[str, Tensor]
    place_E: Tensor | None = None


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
    ids_E = ids_N = torch.cat([each.ids_L for each in chosen])
    positions_T = torch.cat([each.positions_S for each in chosen]) + starts_R.repeat_interleave(scored_R)
    before_T, place_E = positions_T - 1, share_prefixes(chosen)
    if place_E is not None:
        ids_N = torch.empty(int(place_E.max()) + 1, dtype=ids_E.dtype).index_copy(0, place_E, ids_E)
        before_T, place_E = place_E[before_T], place_E.to(device)
    return Pack(
        rows=tuple(indices),
        scored=tuple(scored),
        lengths=tuple(lengths),
        ids_N=ids_N.to(device),
        before_T=before_T.to(device),
        target_T=ids_E[positions_T].to(device),
        row_T=row_R.repeat_interleave(scored_R).to(device),
        columns={name: torch.cat([each.columns[name] for each in chosen]).to(device) for name in chosen[0].columns},
        place_E=place_E,
    )


def share_prefixes(rows: Sequence[Row]) -> Tensor | None:
    """Return the place of each token if each common prefix within a family is kept once; None if nothing is shared.

    Equal prefixes have equal states, because a token sees only its predecessors.
    """
    families: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = defaultdict(list)
    places: list[NDArray[np.int64]] = []
    count = total = 0
    for each in rows:
        ids_L, shared = each.ids_L.numpy(), np.empty(0, np.int64)
        relatives = [] if each.family is None else families[each.family]
        for other_L, place_L in relatives:
            if (length := _common_prefix(ids_L, other_L)) > len(shared):
                shared = place_L[:length]
        own = len(ids_L) - len(shared)
        places.append(np.concatenate([shared, np.arange(count, count + own)]))
        relatives.append((ids_L, places[-1]))
        count, total = count + own, total + len(ids_L)
    return None if count == total else torch.from_numpy(np.concatenate(places))


def _common_prefix(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    return int(differs.argmax()) if differs.any() else length
