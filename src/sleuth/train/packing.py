"""Packed rows: token sequences laid end to end without padding, with what each scored token needs.

Suffixes: N packed tokens, T scored tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.records import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on: its tokens, and the weight of each as a target (0 where it is only context)."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    advantage: float = 1.0
    old: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.ids) or not self.ids or self.weights[0]:
            raise ValueError("a row needs a weight for each token, and none for the first: nothing comes before it")


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows as tensors; `before_T` is the place whose prediction is scored, `target_T` the token it should have made.

    `rows` numbers the rows as they were given, `scored` counts the scored tokens of each.
    """

    rows: tuple[int, ...]
    scored: tuple[int, ...]
    lengths: tuple[int, ...]
    ids_N: Tensor
    before_T: Tensor
    target_T: Tensor
    weight_T: Tensor
    advantage_T: Tensor
    old_T: Tensor


def row_of(trajectory: Trajectory, advantage: float, weight: float) -> Row:
    """A trajectory as a row: sampled tokens weigh `weight`, given ones nothing."""
    weights = tuple(weight if sampled else 0.0 for sampled in trajectory.sampled)
    return Row(trajectory.ids, weights, advantage, trajectory.logprobs)


def pack(rows: Sequence[Row], tokens: int, device: torch.device) -> Iterator[Pack]:
    """Packs of at most `tokens` tokens (a longer row has one to itself), rows of like length together."""
    batch: list[int] = []
    held = 0
    for number in sorted(range(len(rows)), key=lambda number: len(rows[number].ids)):
        length = len(rows[number].ids)
        if batch and held + length > tokens:
            yield _tensors(rows, batch, device)
            batch, held = [], 0
        batch.append(number)
        held += length
    if batch:
        yield _tensors(rows, batch, device)


def _tensors(every: Sequence[Row], numbers: Sequence[int], device: torch.device) -> Pack:
    rows = [every[number] for number in numbers]
    scored = [sum(1 for weight in row.weights if weight) for row in rows]
    weights = [weight for row in rows for weight in row.weights]
    places_T = torch.tensor([place for place, weight in enumerate(weights) if weight], device=device, dtype=torch.long)
    ids_N = torch.tensor([token for row in rows for token in row.ids], device=device)
    advantages = [row.advantage for row, count in zip(rows, scored, strict=True) for _ in range(count)]
    return Pack(
        rows=tuple(numbers),
        scored=tuple(scored),
        lengths=tuple(len(row.ids) for row in rows),
        ids_N=ids_N,
        before_T=places_T - 1,
        target_T=ids_N[places_T],
        weight_T=torch.tensor(weights, device=device)[places_T],
        advantage_T=torch.tensor(advantages, device=device),
        old_T=torch.tensor([logprob for row in rows for logprob in row.old], device=device),
    )
