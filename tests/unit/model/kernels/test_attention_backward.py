"""Gradients of packed attention by our kernels are those of the plain form, row by row.

Suffixes: N packed tokens, H heads, K key heads, D head width.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sleuth.model.attention import PackedFlash
from sleuth.model.kernels import attention_backward
from sleuth.model.kernels.attention_backward import Plan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCALE = 0.3
# Blocks of as many queries as keys, of more and of fewer: the diagonal lies otherwise in each.
PLANS = [Plan(16, 16, 4, 2), Plan(32, 16, 4, 2), Plan(16, 32, 4, 2)]


def case(
    lengths: Sequence[int], shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[PackedFlash, tuple[Tensor, ...]]:
    """What comes down, states that lie within one product, what was attended to and its logarithms."""
    heads, key_heads, width = shape
    dice = torch.Generator().manual_seed(sum(lengths))
    qkv = torch.randn(sum(lengths), heads + 2 * key_heads, width, generator=dice).to(DEVICE, dtype)
    upstream_NHD = torch.randn(sum(lengths), heads, width, generator=dice).to(DEVICE, dtype)
    states = qkv.split([heads, key_heads, key_heads], 1)
    packed = PackedFlash(lengths, DEVICE)
    return packed, (upstream_NHD, *states, *packed.forward(SCALE, *states))


def by_rows(
    lengths: Sequence[int], upstream_NHD: Tensor, query_NHD: Tensor, key_NKD: Tensor, value_NKD: Tensor,
    out_NHD: Tensor, logs_HN: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The plain form: all weights of a sequence at once, in fp32."""
    group = query_NHD.shape[1] // key_NKD.shape[1]
    key_NHD, value_NHD = (each.repeat_interleave(group, 1) for each in (key_NKD, value_NKD))
    found = []
    whole = (upstream_NHD, query_NHD, key_NHD, value_NHD, out_NHD, logs_HN.t())
    for row in zip(*(each.float().split(list(lengths)) for each in whole), strict=True):
        upstream, query, key, value, out, logs = row
        weight_HLL = (torch.einsum("qhd,khd->hqk", query, key) * SCALE - logs.t()[:, :, None]).exp().tril()
        delta_HL1 = (upstream * out).sum(-1).t()[:, :, None]
        to_score_HLL = weight_HLL * (torch.einsum("qhd,khd->hqk", upstream, value) - delta_HL1) * SCALE
        products = ("hqk,khd->qhd", to_score_HLL, key), ("hqk,qhd->khd", to_score_HLL, query)
        found.append([torch.einsum(*each) for each in (*products, ("hqk,qhd->khd", weight_HLL, upstream))])
    together = (torch.cat(parts).to(query_NHD.dtype) for parts in zip(*found, strict=True))
    to_query_NHD, to_key_NHD, to_value_NHD = together
    to_key_NKD, to_value_NKD = (each.unflatten(1, (-1, group)).sum(2) for each in (to_key_NHD, to_value_NHD))
    return to_query_NHD, to_key_NKD, to_value_NKD


def by_kernels(packed: PackedFlash, plan: Plan, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    upstream, query, key, value, out, logs = given
    queries, keys = packed.tiles(plan.queries), packed.tiles(plan.keys, by_tokens_after=True)
    start = packed.starts_R1
    to_query, delta = attention_backward.query_gradient(
        query, key, value, out, upstream, logs, start, queries, SCALE, plan
    )  # fmt: skip
    return to_query, *attention_backward.key_value_gradient(
        query, key, value, upstream, logs, delta, start, keys, SCALE, plan
    )


def assert_near(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], near: float) -> None:
    for name, mine, theirs in zip(("query", "key", "value"), found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine.float() - theirs.float()).abs().max() <= near * theirs.float().abs().max().clamp_min(1), name


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("shape", [(4, 2, 16), (3, 1, 24)], ids=str)
def test_gradients_are_those_of_the_plain_form(plan: Plan, shape: tuple[int, int, int]) -> None:
    lengths = [1, 50, 16, 33]
    packed, given = case(lengths, shape, torch.float32)
    assert_near(by_kernels(packed, plan, given), by_rows(lengths, *given), 1e-5)


def test_half_precision_and_the_plans_of_the_table() -> None:
    lengths = [70, 1]
    packed, given = case(lengths, (2, 1, 16), torch.float16)
    found = packed.backward(SCALE, *given)
    assert_near(found, by_rows(lengths, *given), 5e-3)
    assert all(torch.equal(*pair) for pair in zip(found, packed.backward(SCALE, *given), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(9, 3, 64), (16, 2, 128), (5, 1, 80), (4, 4, 256)], ids=str)
def test_gradients_on_a_gpu(shape: tuple[int, int, int]) -> None:
    lengths = [1, 300, 128, 1, 517]
    packed, given = case(lengths, shape, torch.bfloat16)
    found, again = (packed.backward(SCALE, *given) for _ in range(2))
    for mine, same, exact in zip(found, again, by_rows(lengths, *given), strict=True):
        assert torch.equal(mine, same)
        assert (mine.float() - exact.float()).norm() < 1e-2 * exact.float().norm()
