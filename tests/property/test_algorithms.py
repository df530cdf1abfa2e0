"""What holds of advantages, losses, corrections and weights whatever the numbers.

_N trajectories, _T sampled tokens.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.advantage import ADVANTAGES, penalise_overlong, whiten
from sleuth.algorithms.correction import Action, Level, correct
from sleuth.algorithms.gae import gae
from sleuth.algorithms.kl import ESTIMATORS, adapt_coefficient
from sleuth.algorithms.likelihood import PENALTIES, llds, sapo
from sleuth.algorithms.loss import LOSSES, Bounds, Sampled, clipped, gspo
from sleuth.algorithms.normalise import Normalisation, token_weights

GROUP_METHODS = ["grpo", "dr_grpo", "rloo"]
BATCH_METHODS = ["reinforce", "reinforce_pp"]
QUICK = settings(max_examples=40, deadline=None)
BOUNDS = Bounds(0.2, 0.28, None, 0.4)

rewards = st.floats(-10.0, 10.0, width=32)
shifts = st.floats(-100.0, 100.0, width=32)
seeds = st.integers(0, 1000)
row_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=8)
logprobs = st.lists(st.tuples(st.floats(-30.0, 0.0, width=32), st.floats(-30.0, 0.0, width=32)), min_size=1)
kinds: st.SearchStrategy[Normalisation] = st.sampled_from(["token", "sequence", "constant"])
levels: st.SearchStrategy[Level] = st.sampled_from(["token", "sequence", "geometric"])
actions: st.SearchStrategy[Action] = st.sampled_from(["truncate", "mask", "clip"])


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


def shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(lengths: list[int]) -> Tensor:
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


@pytest.mark.parametrize("name", GROUP_METHODS)
@given(batch=batches())
@QUICK
def test_the_advantages_of_a_group_sum_to_zero(name: str, batch: Batch) -> None:
    advantages_N = ADVANTAGES[name](batch.rewards_N, batch.groups_N)
    for key in set(batch.groups_N.tolist()):
        assert abs(advantages_N[batch.groups_N == key].sum().item()) < 1e-8


@pytest.mark.parametrize("name", BATCH_METHODS)
@given(batch=batches(), shift=shifts)
@QUICK
def test_the_advantages_of_a_batch_sum_to_zero_and_ignore_a_bonus_for_all(
    name: str, batch: Batch, shift: float
) -> None:
    advantages_N = ADVANTAGES[name](batch.rewards_N, batch.groups_N)
    assert abs(advantages_N.sum().item()) < 1e-7
    moved_N = ADVANTAGES[name](batch.rewards_N + shift, batch.groups_N)
    assert_close(moved_N, advantages_N, atol=1e-6, rtol=1e-6)


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


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp"])
@given(batch=batches(), scale=st.floats(1.0, 100.0))
@QUICK
def test_what_divides_by_the_spread_ignores_the_scale_of_rewards(name: str, batch: Batch, scale: float) -> None:
    # Rounded so that a spread is either nothing or far above the epsilon in the denominator.
    rewards_N, advantage = batch.rewards_N.round(decimals=1), ADVANTAGES[name]
    assert_close(
        advantage(rewards_N * scale, batch.groups_N), advantage(rewards_N, batch.groups_N), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(batch=batches(), seed=seeds)
@QUICK
def test_the_order_of_trajectories_and_the_names_of_groups_do_not_matter(name: str, batch: Batch, seed: int) -> None:
    advantage, order_N = ADVANTAGES[name], shuffled(len(batch.rewards_N), seed)
    made_N = advantage(batch.rewards_N[order_N], 1000 - batch.groups_N[order_N])
    assert_close(made_N, advantage(batch.rewards_N, batch.groups_N)[order_N], atol=1e-6, rtol=1e-6)


@given(seed=seeds, count=st.integers(2, 50), scale=st.floats(0.1, 100.0), shift=shifts)
@QUICK
def test_whitened_values_have_mean_zero_and_spread_one(seed: int, count: int, scale: float, shift: float) -> None:
    made_T = whiten(drawn(seed, count) * scale + shift)
    assert abs(made_T.mean().item()) < 1e-9
    assert made_T.std().item() == pytest.approx(1.0, abs=1e-3)


@given(lengths=row_lengths, seed=seeds)
@QUICK
def test_gae_without_decay_is_reward_to_go_less_value(lengths: list[int], seed: int) -> None:
    rewards_T, values_T = drawn(seed, 2, sum(lengths))
    to_go = [part_T.flip(0).cumsum(0).flip(0) for part_T in rewards_T.split(lengths)]
    advantages_T, returns_T = gae(rewards_T, values_T, torch.tensor(lengths), 1.0, 1.0)
    assert_close(returns_T, torch.cat(to_go))
    assert_close(advantages_T, torch.cat(to_go) - values_T)


@given(lengths=row_lengths, seed=seeds, gamma=st.floats(0.0, 1.0), lam=st.floats(0.0, 1.0))
@QUICK
def test_gae_of_a_row_does_not_depend_on_its_neighbours(
    lengths: list[int], seed: int, gamma: float, lam: float
) -> None:
    rewards_T, values_T = drawn(seed, 2, sum(lengths))
    whole_T, _ = gae(rewards_T, values_T, torch.tensor(lengths), gamma, lam)
    rows = list(zip(rewards_T.split(lengths), values_T.split(lengths), whole_T.split(lengths), strict=True))
    order = shuffled(len(rows), seed).tolist()
    mixed_T, _ = gae(
        torch.cat([rows[row][0] for row in order]),
        torch.cat([rows[row][1] for row in order]),
        torch.tensor([lengths[row] for row in order]),
        gamma,
        lam,
    )
    assert torch.equal(mixed_T, torch.cat([rows[row][2] for row in order]))


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
    coefficient=st.floats(1e-4, 10.0),
    measured=st.floats(-100.0, 100.0),
    target=st.floats(0.01, 10.0),
    horizon=st.integers(1, 10_000),
    samples=st.integers(0, 10_000),
)
@QUICK
def test_the_weight_of_the_kl_moves_towards_the_target_and_by_a_fifth_at_most(
    coefficient: float, measured: float, target: float, horizon: int, samples: int
) -> None:
    change = adapt_coefficient(coefficient, measured, target, horizon, samples) / coefficient
    assert 0.8 - 1e-9 <= change <= 1.2 + 1e-9
    assert (change - 1.0) * (measured - target) >= -1e-9


@pytest.mark.parametrize("name", sorted(LOSSES))
@given(lengths=row_lengths, kind=kinds, seed=seeds, cut=st.integers(1, 4))
@QUICK
def test_loss_and_gradient_are_unchanged_by_row_order_and_packing(
    name: str, lengths: list[int], kind: Normalisation, seed: int, cut: int
) -> None:
    """One pass over all rows in order, against rows shuffled and passed `cut` at a time with gradients added up."""
    weights_N = token_weights(torch.tensor(lengths), kind, 8).double()
    rows = [drawn(seed + number, 3, length) * 0.3 for number, length in enumerate(lengths)]
    order = shuffled(len(rows), seed).tolist()
    packs = [order[start : start + cut] for start in range(0, len(order), cut)]

    whole, whole_gradient = passes(name, rows, weights_N, [list(range(len(rows)))])
    split, split_gradient = passes(name, rows, weights_N, packs)
    assert split == pytest.approx(whole, abs=1e-12)
    assert_close(split_gradient, whole_gradient)


def passes(name: str, rows: list[Tensor], weights_N: Tensor, packs: list[list[int]]) -> tuple[float, Tensor]:
    """The loss and its gradient by two parameters: one scales every logprob, one shifts it."""
    parameter = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    total = 0.0
    for pack in packs:
        logprob_T, old_T, advantage_T = torch.cat([rows[row] for row in pack], dim=1)
        weight_T = torch.cat([weights_N[row].expand(rows[row].shape[1]) for row in pack])
        moved_T = logprob_T * (1 + parameter[0]) + parameter[1]
        row_T = rows_of([rows[row].shape[1] for row in pack])
        loss = (weight_T * LOSSES[name](Sampled(moved_T, old_T, advantage_T, row_T), BOUNDS).value_T).sum()
        loss.backward()
        total += loss.item()
    assert parameter.grad is not None
    return total, parameter.grad


@given(count=st.integers(1, 30), seed=seeds)
@QUICK
def test_gspo_of_rows_of_one_token_is_the_clipped_loss(count: int, seed: int) -> None:
    logprob_T, old_T, advantage_T = drawn(seed, 3, count)
    made = []
    for loss in (gspo, clipped):
        mine_T = logprob_T.clone().requires_grad_()
        tokens = loss(Sampled(mine_T, old_T, advantage_T, torch.arange(count)), BOUNDS)
        (gradient_T,) = torch.autograd.grad(tokens.value_T.sum(), mine_T)
        made.append((tokens.value_T.detach(), gradient_T, tokens.metrics))
    assert_close(made[0], made[1])


@pytest.mark.parametrize("name", sorted(LOSSES))
@given(lengths=row_lengths, seed=seeds)
@QUICK
def test_at_the_old_policy_every_loss_has_the_policy_gradient(name: str, lengths: list[int], seed: int) -> None:
    logprob_T, advantage_T = drawn(seed, 2, sum(lengths))
    logprob_T.requires_grad_()
    given_tokens = Sampled(logprob_T, logprob_T.detach(), advantage_T, rows_of(lengths))
    tokens = LOSSES[name](given_tokens, Bounds(0.2, 0.28))
    (gradient_T,) = torch.autograd.grad(tokens.value_T.sum(), logprob_T)
    assert_close(gradient_T, -advantage_T)
    assert tokens.metrics["clipped"].sum() == 0
    assert_close(tokens.metrics["ratio"], torch.ones_like(advantage_T))


@given(lengths=row_lengths, seed=seeds, level=levels, action=actions, veto=st.sampled_from([None, 1e-4, 0.9]))
@QUICK
def test_equal_logprobs_need_no_correction(
    lengths: list[int], seed: int, level: Level, action: Action, veto: float | None
) -> None:
    same_T = drawn(seed, sum(lengths))
    low = None if action == "truncate" else 0.5
    made = correct(same_T, same_T, rows_of(lengths), level=level, action=action, low=low, high=2.0, veto=veto)
    assert made.weight_T.tolist() == [1.0] * sum(lengths)
    assert made.metrics == pytest.approx({"ratio_mean": 1, "ratio_max": 1, "k3": 0, "ess": 1, "dropped": 0})


@given(lengths=row_lengths, seed=seeds, level=levels, high=st.floats(1.01, 5.0))
@QUICK
def test_corrected_weights_keep_their_bounds(lengths: list[int], seed: int, level: Level, high: float) -> None:
    old_T, rollout_T = drawn(seed, 2, sum(lengths))
    row_T, low = rows_of(lengths), 1.0 / high

    def weights(action: Action, low: float | None, high: float) -> Tensor:
        made = correct(old_T, rollout_T, row_T, level=level, action=action, low=low, high=high, veto=None)
        assert 0.0 <= made.metrics["ess"] <= 1.0 + 1e-12
        assert made.metrics["dropped"] == pytest.approx((made.weight_T == 0).double().mean().item())
        return made.weight_T

    ratio_T = weights("truncate", None, 1e9)
    assert_close(weights("truncate", None, high), ratio_T.clamp(max=high))
    assert_close(weights("clip", low, high), ratio_T.clamp(low, high))
    masked_T = weights("mask", low, high)
    assert ((masked_T == 0) | (masked_T == ratio_T)).all()
    assert ((masked_T == 0) == ((ratio_T < low) | (ratio_T > high))).all()


@given(lengths=row_lengths, seed=seeds, level=levels, action=actions, veto=st.sampled_from([None, 0.3]))
@QUICK
def test_corrections_follow_their_tokens(
    lengths: list[int], seed: int, level: Level, action: Action, veto: float | None
) -> None:
    old_T, rollout_T = drawn(seed, 2, sum(lengths))
    row_T, order_T = rows_of(lengths), shuffled(sum(lengths), seed)
    low = None if action == "truncate" else 0.5
    made = correct(old_T, rollout_T, row_T, level=level, action=action, low=low, high=2.0, veto=veto)
    mixed = correct(
        old_T[order_T], rollout_T[order_T], 9 - row_T[order_T], level=level, action=action, low=low, high=2.0, veto=veto
    )
    assert_close(mixed.weight_T, made.weight_T[order_T])
    assert mixed.metrics == pytest.approx(made.metrics)


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=20), limit=st.integers(1, 200), share=st.floats(0, 1))
@QUICK
def test_a_longer_answer_is_never_punished_less(lengths: list[int], limit: int, share: float) -> None:
    buffer = max(1, round(limit * share))
    punishment_N = penalise_overlong(torch.zeros(len(lengths)), torch.tensor(sorted(lengths)), limit, buffer)
    assert (punishment_N.diff() <= 0).all()
    assert ((punishment_N <= 0) & (punishment_N >= -1)).all()


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=20), kind=kinds, seed=seeds)
@QUICK
def test_weights_follow_their_trajectories(lengths: list[int], kind: Normalisation, seed: int) -> None:
    lengths_N, order_N = torch.tensor(lengths), shuffled(len(lengths), seed)
    assert_close(token_weights(lengths_N[order_N], kind, 64), token_weights(lengths_N, kind, 64)[order_N])


@pytest.mark.parametrize("name", sorted(PENALTIES))
@given(pairs=logprobs, lengths=row_lengths, seed=seeds)
@QUICK
def test_likelihood_penalties_are_paid_by_good_tokens_that_fell(
    name: str, pairs: list[tuple[float, float]], lengths: list[int], seed: int
) -> None:
    """SAPO also penalises them in actions that did not fall as a whole."""
    new_T, old_T = torch.tensor(pairs, dtype=torch.float64).T
    unit_T = torch.arange(len(pairs)) // lengths[0]
    sampled = Sampled(new_T, old_T, drawn(seed, len(pairs)), unit_T)
    penalty_T = PENALTIES[name](sampled, 1.0)
    assert (penalty_T >= 0).all()
    assert not penalty_T[(sampled.advantage_T < 0) | (new_T >= old_T)].any()
    assert (llds(sampled, 1.0) <= sapo(sampled, 1.0)).all()
