"""What a policy loss is given, and what it gives.

_T sampled tokens, of all trajectories of a pack one after another.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sleuth.algorithms.shapes import vectors


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The sampled tokens of whole trajectories; `row_T` numbers the trajectory of each token."""

    logprob_T: Tensor
    old_T: Tensor
    advantage_T: Tensor
    row_T: Tensor

    def __post_init__(self) -> None:
        vectors(logprob=self.logprob_T, old=self.old_T, advantage=self.advantage_T, row=self.row_T)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ratio is held in [1 - low, 1 + high]; negative advantages weigh `negative`, and `dual` bounds their loss."""

    low: float
    high: float
    dual: float | None = None
    negative: float = 1.0

    def __post_init__(self) -> None:
        if not (self.low >= 0 and self.high >= 0 and self.negative >= 0):
            raise ValueError(f"{self} holds a number below 0; low, high and negative are 0 or more")
        if self.dual is not None and not self.dual > 1:
            raise ValueError(f"dual = {self.dual:g} would clip tokens that did not change; choose a ratio above 1")

    def clamped(self, ratio_T: Tensor) -> Tensor:
        """The ratio within the bounds."""
        return ratio_T.clamp(1.0 - self.low, 1.0 + self.high)

    def weight(self, advantage_T: Tensor) -> Tensor:
        """What each token weighs by the sign of its advantage."""
        return torch.where(advantage_T < 0, self.negative, 1.0).to(advantage_T.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """A loss for each token, and what to average over tokens for the record (without gradient)."""

    value_T: Tensor
    metrics: dict[str, Tensor]
