"""Packed attention by kernel: what each row computes on its own, its log-sum-exp, and on a GPU its gradients.

Suffixes: N packed tokens, L tokens of a row, H heads, K key heads, D head width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from sleuth.model import flash
from sleuth.model.alike import install
from sleuth.model.attention import Packed
from sleuth.model.flash import Flash
from sleuth.model.kernels.rotary import Heads

Tiny = Callable[..., PreTrainedModel]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The longest has more queries than a tile; the last width is no power of two.
LENGTHS = ([1], [1, 70, 1, 33])
HEADS = ((4, 4, 16), (4, 2, 16), (6, 1, 24))
SCALE = 0.3


def on_gpu(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    nn.Module.to(model, "cuda", dtype)
    return model


def states(lengths: Sequence[int], shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    heads, key_heads, width = shape
    dice = torch.Generator().manual_seed(sum(lengths))
    query, key, value = (
        torch.randn(sum(lengths), each, width, generator=dice).to(DEVICE, dtype).requires_grad_()
        for each in (heads, key_heads, key_heads)
    )
    return query, key, value


def by_rows(lengths: Sequence[int], *packed: Tensor) -> Tensor:
    """Attention row by row, as PyTorch has it."""
    attend = partial(scaled_dot_product_attention, is_causal=True, scale=SCALE, enable_gqa=True)
    rows = [
        attend(*(part.transpose(0, 1)[None] for part in row))
        for row in zip(*(each.split(list(lengths)) for each in packed), strict=True)
    ]
    return torch.cat([row[0].transpose(0, 1) for row in rows])


def logs(lengths: Sequence[int], query_NHD: Tensor, key_NKD: Tensor) -> Tensor:
    """The logarithm of each query's sum of exponentials, H x N."""
    key_NHD = key_NKD.repeat_interleave(query_NHD.shape[1] // key_NKD.shape[1], 1)
    rows = []
    for query, key in zip(query_NHD.split(list(lengths)), key_NHD.split(list(lengths)), strict=True):
        score_HLL = torch.einsum("qhd,khd->hqk", query, key) * SCALE
        later_LL = torch.ones_like(score_HLL[0], dtype=torch.bool).triu(1)
        rows.append(score_HLL.masked_fill(later_LL, float("-inf")).logsumexp(-1))
    return torch.cat(rows, 1)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_on_their_own(lengths: list[int], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    given = states(lengths, shape, dtype)
    out_NHD = Flash(lengths, DEVICE).attend(*given, SCALE)
    exact = [each.detach().double() for each in given]
    near = 1e-5 if dtype == torch.float32 else 2e-3
    assert out_NHD.dtype == dtype
    torch.testing.assert_close(out_NHD.double(), by_rows(lengths, *exact), rtol=near, atol=near)
    context: Any = out_NHD.grad_fn
    logs_HN = context.saved_tensors[-1]
    # Weights are rounded to the dtype of values before they are summed: their sum is as near as they are.
    near = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(logs_HN.double(), logs(lengths, *exact[:2]), rtol=1e-5, atol=near)


def test_states_may_lie_within_others() -> None:
    """As queries, keys and values do where one product made them, heads before tokens."""
    lengths = [5, 2]
    whole = torch.randn(8, 7, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    query, key, value = (part.transpose(0, 1) for part in whole.split([4, 2, 2]))
    found = Flash(lengths, DEVICE).attend(query, key, value, SCALE)
    torch.testing.assert_close(found, by_rows(lengths, query, key, value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_heads_are_attended_where_one_product_left_them(shape: tuple[int, int, int]) -> None:
    """Turned by no angle they are as they were, and nothing of them is copied."""
    lengths = [1, 7, 3]
    query, key, value = (each.detach() for each in states(lengths, shape, torch.float32))
    qkv = torch.cat([query, key, value], 1).flatten(1).requires_grad_()
    still = torch.ones(len(query), shape[2], device=DEVICE), torch.zeros(len(query), shape[2], device=DEVICE)
    found = Flash(lengths, DEVICE).attend_rotated(qkv, *still, (None, None), Heads(*shape), SCALE)
    assert torch.equal(found, Flash(lengths, DEVICE).attend(query, key, value, SCALE).flatten(1))


def test_tiles_hold_every_token_once_and_the_longest_work_where_it_starts_first() -> None:
    lengths, starts = [9, 1, 4], [0, 9, 10]
    packed = Flash(lengths, DEVICE)
    for towards_end in (False, True):
        tiles = packed.tiles(4, towards_end=towards_end)
        assert all(part.is_contiguous() for part in (tiles.slot_T, tiles.position_T))  # as kernels read them
        each = torch.stack([tiles.first_T, tiles.slot_T, tiles.position_T, tiles.count_T], 1).tolist()
        tokens = sorted(first + token for first, _, _, count in each for token in range(count))
        assert tokens == list(range(sum(lengths)))
        assert all(first == starts[row] + position for first, row, position, _ in each)
        work = [position - lengths[row] if towards_end else position for _, row, position, _ in each]
        assert work == sorted(work)


def test_a_cpu_is_not_taken() -> None:
    assert not flash.takes(torch.empty(3, 4, 64, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_what_is_taken_on_a_gpu() -> None:
    def taken(width: int, dtype: torch.dtype) -> bool:
        return flash.takes(torch.empty(3, 4, width, dtype=dtype, device="cuda"))

    assert all(taken(width, torch.bfloat16) for width in (8, 64, 80, 256))
    assert taken(64, torch.float16)
    assert not taken(64, torch.float32)
    assert not taken(12, torch.bfloat16)
    assert not taken(264, torch.bfloat16)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).detach().norm() / exact.detach().norm())


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[1, 200, 1, 37], [1, 1], [130]], ids=str)
@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 4, 16)], ids=str)
def test_gradients(lengths: list[int], shape: tuple[int, int, int]) -> None:
    given = states(lengths, shape, torch.bfloat16)
    exact = [each.detach().float().requires_grad_() for each in given]
    upstream = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).to("cuda", torch.bfloat16)
    expected_NHD = by_rows(lengths, *exact)
    found_NHD = Flash(lengths, DEVICE).attend(*given, SCALE)
    assert error(found_NHD, expected_NHD) < 1e-2
    found = torch.autograd.grad(found_NHD, given, upstream)
    expected = torch.autograd.grad(expected_NHD, exact, upstream.float())
    for name, mine, theirs in zip(("query", "key", "value"), found, expected, strict=True):
        assert mine.shape == theirs.shape
        # A token that sees itself alone gives its query and key no gradient.
        if max(lengths) == 1 and name != "value":
            assert mine.abs().max() < 1e-2
        else:
            assert error(mine, theirs) < 1e-2, name


@pytest.mark.gpu
def test_model_trains_with_and_without_checkpoints(tiny: Tiny, family: str) -> None:
    """Gradients of every parameter: by the kernels, with states kept and with states made again, near those of fp32."""
    lengths = [1, 20, 33]
    # The same weights: what their rounding alone changes is as much as all other roundings.
    single = on_gpu(on_gpu(tiny(family), torch.bfloat16), torch.float32)
    dice = torch.Generator().manual_seed(0)
    weights = torch.randn(sum(lengths), single.config.hidden_size, generator=dice).to("cuda")

    def gradients(model: PreTrainedModel) -> Tensor:
        layout = Packed(lengths, model.device)
        ids_N = torch.arange(sum(lengths), device="cuda") % model.config.vocab_size
        hidden_NW = model.base_model(
            input_ids=ids_N[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        model.zero_grad()
        (hidden_NW * weights.to(hidden_NW.dtype)).sum().backward()
        each = (parameter.grad for parameter in model.base_model.parameters())
        return torch.cat([grad.float().flatten() for grad in each if grad is not None])

    expected = gradients(single)
    half = on_gpu(tiny(family), torch.bfloat16)
    install(half)
    kept = gradients(half)
    assert len(kept) == len(expected)
    assert error(kept, expected) < 0.1
    half.train()
    half.gradient_checkpointing_enable()
    assert error(gradients(half), kept) < 1e-2
