"""Packed attention and its gradients equal those of the stock model on each sequence alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from sleuth.model.attention import PackedFlash, PackedLayout, split_into_tiles, supports_flash
from sleuth.model.kernel_patch import install
from sleuth.model.kernels.rotary import HeadLayout

Tiny = Callable[..., PreTrainedModel]

# One row, rows all unlike, rows alike, and blocks of rows alike that are padded within.
LENGTHS = ([5], [1], [1, 1, 1], [7, 1, 12, 3], [9, 9], [9, 10, 8, 10, 3, 20, 17, 16])


def sequences(lengths: Sequence[int], vocabulary: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(vocabulary, (length,), generator=dice) for length in lengths]


def packed_hidden(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    layout = PackedLayout([len(row) for row in rows], torch.device("cpu"))
    hidden: Tensor = model.base_model(
        input_ids=torch.cat(list(rows))[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
    ).last_hidden_state[0]
    return hidden


def stock_hidden(model: PreTrainedModel, rows: Sequence[Tensor]) -> Tensor:
    return torch.cat([model.base_model(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_hidden_states(tiny: Tiny, family: str, lengths: list[int]) -> None:
    ours, stock = tiny(family), tiny(family, attention="eager")
    rows = sequences(lengths, ours.config.vocab_size)
    torch.testing.assert_close(packed_hidden(ours, rows), stock_hidden(stock, rows), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_gradients(tiny: Tiny, family: str, lengths: list[int]) -> None:
    """Of every parameter, for a loss that weighs every token differently."""
    ours, stock = tiny(family), tiny(family, attention="eager")
    rows = sequences(lengths, ours.config.vocab_size)
    weights = torch.randn(sum(lengths), ours.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for model, hidden in ((ours, packed_hidden(ours, rows)), (stock, stock_hidden(stock, rows))):
        (hidden * weights).sum().backward()
        assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-3, rtol=1e-4, msg=name)


def test_a_sequence_does_not_see_its_neighbours(tiny: Tiny) -> None:
    model = tiny()
    first, second, third = sequences([6, 4, 5], model.config.vocab_size)
    changed = (second + 1) % model.config.vocab_size
    before, after = packed_hidden(model, [first, second, third]), packed_hidden(model, [first, changed, third])
    torch.testing.assert_close(before[:6], after[:6])
    torch.testing.assert_close(before[10:], after[10:])
    assert not torch.allclose(before[6:10], after[6:10])


def test_positions_begin_anew_with_each_sequence() -> None:
    assert PackedLayout([3, 1, 2], torch.device("cpu")).positions_N.tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(("setting", "asked"), [("sliding_window", 4), ("softcap", 30.0), ("s_aux", torch.zeros(4))])
def test_what_a_layer_asks_beyond_plain_attention_is_refused(tiny: Tiny, setting: str, asked: object) -> None:
    """A model may carry such a wish in its layers without its settings telling."""
    model = tiny()
    attention = model.model.layers[1].self_attn
    attention.register_forward_pre_hook(
        lambda _module, args, wishes: (args, {**wishes, setting: asked}), with_kwargs=True
    )
    with pytest.raises(ValueError, match=setting):
        packed_hidden(model, sequences([3], model.config.vocab_size))


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The longest has more queries than a tile; the last width is no power of two.
KERNEL_LENGTHS = ([1], [1, 70, 1, 33])
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


@pytest.mark.parametrize("lengths", KERNEL_LENGTHS, ids=str)
@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_on_their_own(lengths: list[int], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    given = states(lengths, shape, dtype)
    out_NHD = PackedFlash(lengths, DEVICE).attend(*given, SCALE)
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
    found = PackedFlash(lengths, DEVICE).attend(query, key, value, SCALE)
    torch.testing.assert_close(found, by_rows(lengths, query, key, value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_heads_are_attended_where_one_product_left_them(shape: tuple[int, int, int]) -> None:
    """Turned by no angle they are as they were, and nothing of them is copied."""
    lengths = [1, 7, 3]
    query, key, value = (each.detach() for each in states(lengths, shape, torch.float32))
    qkv = torch.cat([query, key, value], 1).flatten(1).requires_grad_()
    still = torch.ones(len(query), shape[2], device=DEVICE), torch.zeros(len(query), shape[2], device=DEVICE)
    found = PackedFlash(lengths, DEVICE).attend_rotated(qkv, *still, (None, None), HeadLayout(*shape), SCALE)
    assert torch.equal(found, PackedFlash(lengths, DEVICE).attend(query, key, value, SCALE).flatten(1))


def test_tiles_hold_every_token_once_and_the_longest_work_where_it_starts_first() -> None:
    lengths, starts = [9, 1, 4], [0, 9, 10]
    packed = PackedFlash(lengths, DEVICE)
    for towards_end in (False, True):
        tiles = packed.tiles(4, by_tokens_after=towards_end)
        assert all(part.is_contiguous() for part in (tiles.slot_T, tiles.position_T))  # as kernels read them
        each = torch.stack([tiles.first_T, tiles.slot_T, tiles.position_T, tiles.count_T], 1).tolist()
        tokens = sorted(first + token for first, _, _, count in each for token in range(count))
        assert tokens == list(range(sum(lengths)))
        assert all(first == starts[row] + position for first, row, position, _ in each)
        work = [position - lengths[row] if towards_end else position for _, row, position, _ in each]
        assert work == sorted(work)


def test_a_cpu_is_not_taken() -> None:
    assert not supports_flash(torch.empty(3, 4, 64, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_what_is_taken_on_a_gpu() -> None:
    def taken(width: int, dtype: torch.dtype) -> bool:
        return supports_flash(torch.empty(3, 4, width, dtype=dtype, device="cuda"))

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
def test_kernel_gradients(lengths: list[int], shape: tuple[int, int, int]) -> None:
    given = states(lengths, shape, torch.bfloat16)
    exact = [each.detach().float().requires_grad_() for each in given]
    upstream = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).to("cuda", torch.bfloat16)
    expected_NHD = by_rows(lengths, *exact)
    found_NHD = PackedFlash(lengths, DEVICE).attend(*given, SCALE)
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
        layout = PackedLayout(lengths, model.device)
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
    getattr(half, "activation_checkpointing_enable", half.gradient_checkpointing_enable)()
    assert error(gradients(half), kept) < 1e-2


COUNTS = st.integers(1, 300)


@given(first=st.integers(0, 10**6), slot=st.integers(0, 500), position=st.integers(0, 5000), count=COUNTS, most=COUNTS)
def test_every_query_is_in_one_tile(first: int, slot: int, position: int, count: int, most: int) -> None:
    firsts, slots, positions, counts = split_into_tiles(first, slot, position, count, most)
    places = [at + query for at, held in zip(firsts, counts, strict=True) for query in range(held)]
    assert places == list(range(first, first + count))
    assert set(slots) == {slot}
    assert list(positions - firsts) == [position - first] * len(firsts)
    # All but the last are full: fewer tiles would not hold them.
    assert list(counts[:-1]) == [most] * (len(counts) - 1)
    assert 1 <= counts[-1] <= most


def test_columns_are_small_integers() -> None:
    assert split_into_tiles(3, 1, 16, 5, 2).tolist() == [[3, 5, 7], [1, 1, 1], [16, 18, 20], [2, 2, 1]]
    assert split_into_tiles(3, 1, 16, 5, 2).dtype == np.int32


@pytest.mark.parametrize("queries", [1, 64])
def test_nothing_is_no_tile(queries: int) -> None:
    assert split_into_tiles(3, 1, 0, 0, queries).shape == (4, 0)
