"""The punishment of long answers against numbers worked by hand.

_N trajectories.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.advantage import penalise_overlong


def test_by_hand() -> None:
    # limit 100, buffer 20: free up to 80, then (80 - length) / 20, then -1
    lengths_N = torch.tensor([0, 80, 81, 90, 100, 130])
    expected_N = torch.tensor([1.0, 1.0, 0.95, 0.5, 0.0, 0.0])
    assert_close(penalise_overlong(torch.ones(6), lengths_N, 100, 20), expected_N)
    assert_close(penalise_overlong(torch.zeros(6), lengths_N, 100, 20), expected_N - 1)


def test_a_buffer_as_long_as_the_limit_punishes_every_token() -> None:
    assert_close(penalise_overlong(torch.zeros(3), torch.tensor([0, 5, 10]), 10, 10), torch.tensor([0.0, -0.5, -1.0]))


@pytest.mark.parametrize(("limit", "buffer"), [(10, 0), (10, -1), (10, 11), (0, 0)])
def test_buffers_outside_the_limit_are_refused(limit: int, buffer: int) -> None:
    with pytest.raises(ValueError, match=rf"buffer = {buffer} tokens .* limit of {limit}"):
        penalise_overlong(torch.zeros(1), torch.tensor([1]), limit, buffer)


@pytest.mark.parametrize("lengths_N", [torch.tensor([1]), torch.tensor([[1], [2]])])
def test_vectors_of_two_lengths_are_refused(lengths_N: Tensor) -> None:
    with pytest.raises(ValueError, match="vectors"):
        penalise_overlong(torch.zeros(2), lengths_N, 10, 5)
