"""What a token of each trajectory weighs in the loss of a mini-batch.

_N trajectories. The loss is the sum over tokens of weight times token loss. Weights are made once for a whole
mini-batch, so the sum is the same however rows are ordered, packed or split over passes.
"""

from typing import Literal, assert_never

from torch import Tensor

Normalisation = Literal["token", "sequence", "constant"]


def token_weights(lengths_N: Tensor, kind: Normalisation, constant: int) -> Tensor:
    """The weight of each token of trajectory n, where `lengths_N` counts its sampled tokens."""
    count = lengths_N.numel()
    match kind:
        case "token":
            return 1.0 / lengths_N.sum().clamp(min=1).expand(count)
        case "sequence":
            # A trajectory without sampled tokens has no token to weigh: any finite weight will do.
            return 1.0 / (count * lengths_N.clamp(min=1))
        case "constant":
            return 1.0 / (count * lengths_N.new_full((count,), constant))
        case _:
            assert_never(kind)
