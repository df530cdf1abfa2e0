"""Loss aggregation: the weight of each token in the loss of a mini-batch.

Suffix: N trajectories. Weights are computed once per mini-batch, so the loss does not depend on how rows are ordered,
packed or split over forward passes.
"""

from typing import Literal, assert_never

from torch import Tensor

Normalisation = Literal["token", "sequence", "constant"]


def token_weights(lengths_N: Tensor, kind: Normalisation, constant: int) -> Tensor:
    """Return the weight of a token in each trajectory, given the number of sampled tokens per trajectory."""
    count = lengths_N.numel()
    match kind:
        case "token":
            return 1.0 / lengths_N.sum().clamp(min=1).expand(count)
        case "sequence":
            return 1.0 / (count * lengths_N.clamp(min=1))
        case "constant":
            return 1.0 / (count * lengths_N.new_full((count,), constant))
        case _:
            assert_never(kind)
