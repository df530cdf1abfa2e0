"""Rows of a family: common prefixes are packed once, and scores and gradients stay those of rows apart."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.model.packing import Row, concatenate, row
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens

Tiny = Callable[..., PreTrainedModel]
CPU = torch.device("cpu")


def scored_from(ids: Sequence[int], first: int, family: int | None = 0) -> Row:
    """A row whose tokens from `first` on are scored."""
    weights = [0.0] * first + [0.25 + 0.5 * (place % 2) for place in range(first, len(ids))]
    return replace(row(ids, weights), family=family)


def test_a_common_prefix_is_packed_once() -> None:
    rows = [scored_from([1, 2, 3, 4], 1), scored_from([1, 2, 5], 2), scored_from([1, 2, 5, 6], 3)]
    made = concatenate(rows, [0, 1, 2], CPU)
    assert made.ids_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert made.place_E is not None
    assert made.place_E.tolist() == [0, 1, 2, 3, 0, 1, 4, 0, 1, 4, 5]
    assert made.lengths == (4, 3, 4)
    assert made.target_T.tolist() == [2, 3, 4, 5, 6]
    assert made.before_T.tolist() == [0, 1, 2, 1, 4]


def test_rows_of_other_families_or_without_one_share_nothing() -> None:
    rows = [scored_from([1, 2, 3], 1, family) for family in (0, 1, None, None)]
    made = concatenate(rows, [0, 1, 2, 3], CPU)
    assert made.place_E is None
    assert made.ids_N.tolist() == [1, 2, 3] * 4


def trees(seed: int) -> list[Row]:
    """Two trees of rows that branch from one another at any place, and a row alone."""
    dice = random.Random(seed)
    rows: list[Row] = []
    for family in (0, 1, None):
        texts: list[list[int]] = []
        for _ in range(1 if family is None else 5):
            parent = dice.choice(texts) if texts else []
            shared = parent[: dice.randrange(len(parent) + 1)]
            texts.append([*shared, *(dice.randrange(60) for _ in range(dice.randrange(2, 9)))])
            rows.append(scored_from(texts[-1], max(1, len(shared)), family))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_gradients_are_those_of_rows_apart(tiny: Tiny, tokens: Tokens, family: str, seed: int) -> None:
    policy, rows = Policy(tiny(family), tokens), trees(seed)
    apart = [replace(each, family=None) for each in rows]
    found: list[list[Tensor]] = []
    for chosen in (rows, apart):
        made = concatenate(chosen, range(len(chosen)), CPU)
        logprob_T, entropy_T = policy.score(made, 0.7)
        policy.model.zero_grad()
        (logprob_T * made.columns["weight"] + 0.1 * entropy_T).sum().backward()
        gradients = [each.grad.clone() for _, each in policy.parameters() if each.grad is not None]
        found.append([torch.tensor(len(made.ids_N)), logprob_T, entropy_T, *gradients])
    (fewer, *ours), (all_of_them, *theirs) = found
    assert fewer < all_of_them
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)
