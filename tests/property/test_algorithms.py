"""What holds of advantages, KL estimators and token weights whatever the numbers.

_N trajectories, _T sampled tokens.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.advantage import ADVANTAGES, grpo
from sleuth.algorithms.kl import ESTIMATORS
from sleuth.algorithms.loss import clipped
from sleuth.algorithms.normalise import Normalisation, token_weights

GROUP_METHODS = ["grpo", "dr_grpo", "rloo"]
QUICK = settings(max_examples=60, deadline=None)

rewards = st.floats(-10.0, 10.0, width=32)
shifts = st.floats(-100.0, 100.0, width=32)
logprobs = st.lists(st.tuples(st.floats(-30.0, 0.0, width=32), st.floats(-30.0, 0.0, width=32)), min_size=1)
kinds: st.SearchStrategy[Normalisation] = st.sampled_from(["token", "sequence", "constant"])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rewards and group keys, members of a group not side by side."""

    rewards_N: Tensor
    groups_N: Tensor


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=5))
    keys = draw(st.lists(st.integers(-50, 50), min_size=len(sizes), max_size=len(sizes), unique=True))
    groups = draw(st.permutations([key for key, size in zip(keys, sizes, strict=True) for _ in range(size)]))
    values = draw(st.lists(rewards, min_size=len(groups), max_size=len(groups)))
    return Batch(torch.tensor(values, dtype=torch.float64), torch.tensor(groups))


@pytest.mark.parametrize("name", GROUP_METHODS)
@given(batch=batches())
@QUICK
def test_the_advantages_of_a_group_sum_to_zero(name: str, batch: Batch) -> None:
    advantages_N = ADVANTAGES[name](batch.rewards_N, batch.groups_N)
    for key in set(batch.groups_N.tolist()):
        assert abs(advantages_N[batch.groups_N == key].sum().item()) < 1e-8


@pytest.mark.parametrize("name", GROUP_METHODS)
@given(batch=batches(), shift=shifts)
@QUICK
def test_a_bonus_for_the_whole_group_changes_nothing(name: str, batch: Batch, shift: float) -> None:
    advantage = ADVANTAGES[name]
    shift_N = shift * (batch.groups_N == batch.groups_N[0])
    # grpo divides by a standard deviation as small as 1e-6: rounding of the shifted rewards shows there
    assert_close(
        advantage(batch.rewards_N + shift_N, batch.groups_N),
        advantage(batch.rewards_N, batch.groups_N),
        atol=1e-6,
        rtol=1e-6,
    )


@given(batch=batches(), scale=st.floats(1.0, 100.0))
@QUICK
def test_grpo_ignores_the_scale_of_rewards(batch: Batch, scale: float) -> None:
    # Rounded so that a spread is either nothing or far above the epsilon in the denominator.
    rewards_N = batch.rewards_N.round(decimals=1)
    assert_close(grpo(rewards_N * scale, batch.groups_N), grpo(rewards_N, batch.groups_N), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(batch=batches(), seed=st.integers(0, 1000))
@QUICK
def test_the_order_of_trajectories_and_the_names_of_groups_do_not_matter(name: str, batch: Batch, seed: int) -> None:
    advantage = ADVANTAGES[name]
    order_N = torch.randperm(len(batch.rewards_N), generator=torch.Generator().manual_seed(seed))
    shuffled_N = advantage(batch.rewards_N[order_N], 1000 - batch.groups_N[order_N])
    assert_close(shuffled_N, advantage(batch.rewards_N, batch.groups_N)[order_N], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(pairs=logprobs)
@QUICK
def test_k2_and_k3_are_never_negative_and_zero_at_the_reference(
    dtype: torch.dtype, pairs: list[tuple[float, float]]
) -> None:
    logprob_T, reference_T = torch.tensor(pairs, dtype=dtype).unbind(1)
    for name in ("k2", "k3"):
        assert (ESTIMATORS[name](logprob_T, reference_T) >= 0).all()
        assert (ESTIMATORS[name](logprob_T, logprob_T) == 0).all()


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    kind=kinds,
    seed=st.integers(0, 1000),
    cut=st.integers(1, 4),
)
@QUICK
def test_loss_and_gradient_are_unchanged_by_row_order_and_packing(
    lengths: list[int], kind: Normalisation, seed: int, cut: int
) -> None:
    """One pass over all rows in order, against rows shuffled and passed `cut` at a time with gradients added up."""
    generator = torch.Generator().manual_seed(seed)
    weights_N = token_weights(torch.tensor(lengths), kind, 8).double()
    rows = [torch.randn(3, length, generator=generator, dtype=torch.float64) * 0.3 for length in lengths]
    order = torch.randperm(len(rows), generator=generator).tolist()
    packs = [order[start : start + cut] for start in range(0, len(order), cut)]

    whole, whole_gradient = passes(rows, weights_N, [list(range(len(rows)))])
    split, split_gradient = passes(rows, weights_N, packs)
    assert split == pytest.approx(whole, abs=1e-12)
    assert_close(split_gradient, whole_gradient)


def passes(rows: list[Tensor], weights_N: Tensor, packs: list[list[int]]) -> tuple[float, Tensor]:
    """The loss and its gradient by one parameter that shifts every logprob, row n also scaled by it."""
    parameter = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    total = 0.0
    for pack in packs:
        logprob_T, old_T, advantage_T = torch.cat([rows[row] for row in pack], dim=1)
        weight_T = torch.cat([weights_N[row].expand(rows[row].shape[1]) for row in pack])
        moved_T = logprob_T * (1 + parameter[0]) + parameter[1]
        loss = (weight_T * clipped(moved_T, old_T, advantage_T, 0.2, 0.28, 0.4).value_T).sum()
        loss.backward()
        total += loss.item()
    assert parameter.grad is not None
    return total, parameter.grad


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=20), kind=kinds, seed=st.integers(0, 1000))
@QUICK
def test_weights_follow_their_trajectories(lengths: list[int], kind: Normalisation, seed: int) -> None:
    lengths_N = torch.tensor(lengths)
    order_N = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    assert_close(token_weights(lengths_N[order_N], kind, 64), token_weights(lengths_N, kind, 64)[order_N])
