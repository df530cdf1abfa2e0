"""Whitening against numbers worked by hand.

_T values of a batch.
"""

import pytest
import torch
from torch.testing import assert_close

from sleuth.algorithms.advantage import centre, whiten


def test_by_hand() -> None:
    # mean 3; deviations -2, 0, 2; std = sqrt(8 / 2) = 2
    values_T = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    assert centre(values_T).tolist() == [-2.0, 0.0, 2.0]
    assert_close(whiten(values_T), torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), atol=1e-6, rtol=0.0)


def test_values_far_from_zero_keep_their_spread() -> None:
    values_T = torch.tensor([1e6 - 1, 1e6, 1e6 + 1])
    assert_close(whiten(values_T), torch.tensor([-1.0, 0.0, 1.0]))


def test_equal_values_are_exact_zeros() -> None:
    assert whiten(torch.full((7,), 0.1)).tolist() == [0.0] * 7
    assert whiten(torch.tensor([0.3])).tolist() == [0.0]


def test_nothing_stays_nothing() -> None:
    assert whiten(torch.zeros(0)).tolist() == []


def test_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"values \(2, 3\)"):
        whiten(torch.zeros(2, 3))
