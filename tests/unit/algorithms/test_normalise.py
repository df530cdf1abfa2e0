"""Token weights against numbers worked by hand.

_N trajectories.
"""

import pytest
import torch
from torch.testing import assert_close

from sleuth.algorithms.normalise import Normalisation, token_weights


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token", [1 / 10, 1 / 10, 1 / 10]),  # 1 + 4 + 5 tokens
        ("sequence", [1 / 3, 1 / 12, 1 / 15]),  # three trajectories of 1, 4, 5
        ("constant", [1 / 24, 1 / 24, 1 / 24]),  # three trajectories of 8 by decree
    ],
)
def test_by_hand(kind: Normalisation, expected: list[float]) -> None:
    assert_close(token_weights(torch.tensor([1, 4, 5]), kind, 8), torch.tensor(expected))


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_the_weights_of_all_tokens_sum_to_one(kind: Normalisation) -> None:
    lengths_N = torch.tensor([3, 17, 1, 256])
    assert (token_weights(lengths_N, kind, 1) * lengths_N).sum().item() == pytest.approx(1.0)


def test_a_trajectory_without_tokens_changes_no_other_token() -> None:
    assert_close(token_weights(torch.tensor([0, 4, 6]), "token", 1), torch.full((3,), 0.1))
    assert_close(token_weights(torch.tensor([0, 4, 5]), "sequence", 1)[1:], torch.tensor([1 / 12, 1 / 15]))


@pytest.mark.parametrize("kind", ["token", "sequence", "constant"])
def test_no_tokens_at_all_give_finite_weights(kind: Normalisation) -> None:
    assert token_weights(torch.tensor([0, 0]), kind, 8).isfinite().all()
