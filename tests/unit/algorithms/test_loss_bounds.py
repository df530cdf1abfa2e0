"""What no loss is given: tokens of two lengths, and bounds that cannot be meant.

_T sampled tokens.
"""

import math

import pytest
import torch
from torch import Tensor

from sleuth.algorithms.loss import Bounds, Sampled


@pytest.mark.parametrize("wrong_T", [torch.zeros(1), torch.zeros(3, 1), torch.tensor(0.0)])
@pytest.mark.parametrize("place", range(4))
def test_vectors_of_two_lengths_are_refused(wrong_T: Tensor, place: int) -> None:
    given = [torch.zeros(3)] * 4
    given[place] = wrong_T
    with pytest.raises(ValueError, match=r"logprob .*, old .*, advantage .* and row .*"):
        Sampled(*given)


@pytest.mark.parametrize(
    ("low", "high", "negative"), [(-0.1, 0.2, 1.0), (0.2, -0.1, 1.0), (0.2, 0.2, -1.0), (math.nan, 0.2, 1.0)]
)
def test_bounds_below_zero_are_refused(low: float, high: float, negative: float) -> None:
    with pytest.raises(ValueError, match=r"Bounds\(low="):
        Bounds(low, high, None, negative)


@pytest.mark.parametrize("dual", [1.0, 0.5, math.nan])
def test_a_dual_clip_of_one_or_less_is_refused(dual: float) -> None:
    with pytest.raises(ValueError, match="above 1"):
        Bounds(0.2, 0.2, dual)
