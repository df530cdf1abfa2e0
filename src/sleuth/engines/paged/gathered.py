"""Attention over cached pages in plain PyTorch: what the kernels compute, and what runs on a CPU.

Pages of a sequence are gathered side by side before they are attended to, which a GPU would be slow at.

Suffixes: N packed tokens, B lanes, H heads, K key heads, D head width, S slots, X pages of the longest sequence,
L tokens of those pages.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sleuth.model.attention import Tiles

QUERIES = 1024  # of a tile: bounds what a mask takes
# Bytes of keys gathered at once: they stay near the processor, and no call waits for fresh pages of memory.
GATHERED = 1 << 21


def decode(
    query_BHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor, slots_B: Tensor, lengths_S: Tensor,
    scale: float, out_BHD: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What each lane's query sees of the first `lengths_S[slot]` tokens of its slot; zeros where there are none."""
    (lanes, heads, width), (_, key_heads, page, _) = query_BHD.shape, keys.shape
    if out_BHD is None:
        out_BHD = query_BHD.new_empty(lanes, heads, width)
    if not lanes:
        return out_BHD
    lengths_B = lengths_S[slots_B]
    longest = -(-int(lengths_B.max()) // page) * page
    some = max(1, GATHERED // (max(1, longest) * key_heads * width * keys.element_size()))
    for start in range(0, lanes, some):
        lane = slice(start, start + some)
        _decode(query_BHD[lane] * scale, keys, values, table_SX[slots_B[lane]], lengths_B[lane], out_BHD[lane])
    return out_BHD


def tile_queries(heads: int, key_heads: int) -> int:  # noqa: ARG001  the kernels' depends on them
    """The most queries of a prefill tile: a whole segment, unless it is very long."""
    return QUERIES


def prefill(
    query_NHD: Tensor, out_NHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor, tiles: Tiles, scale: float
) -> None:
    """Writes, for the queries of the tiles alone, what each sees of its slot's tokens up to its own position."""
    (_, heads, width), (_, key_heads, page, _) = query_NHD.shape, keys.shape
    grouped = (key_heads, heads // key_heads, -1, width)
    columns = (tiles.first_T, tiles.slot_T, tiles.position_T, tiles.count_T)
    for first, slot, position, count in zip(*(column.tolist() for column in columns), strict=True):
        if not count:
            continue
        seen = position + count
        rows_I = _rows(table_SX[slot : slot + 1, : -(-seen // page)], key_heads)
        key, value = (_gather(states, rows_I, 1)[0, :, None, :seen].expand(grouped) for states in (keys, values))
        query = query_NHD[first : first + count].unflatten(1, grouped[:2]).permute(1, 2, 0, 3)
        # A mask of queries by tokens where some came before: PyTorch's own causal one starts at the first of both.
        before = position > 0
        mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril_(position) if before else None
        out = scaled_dot_product_attention(query, key, value, mask, is_causal=not before, scale=scale)
        out_NHD[first : first + count] = out.permute(2, 0, 1, 3).flatten(1, 2)


def store(key_NKD: Tensor, value_NKD: Tensor, keys: Tensor, values: Tensor, addresses_N: Tensor) -> None:
    """Writes the keys and values of new tokens to their addresses; -1 is nowhere."""
    there_N = addresses_N >= 0
    if not there_N.all():
        key_NKD, value_NKD, addresses_N = key_NKD[there_N], value_NKD[there_N], addresses_N[there_N]
    page_N, place_N = addresses_N // keys.shape[2], addresses_N % keys.shape[2]
    keys[page_N, :, place_N] = key_NKD
    values[page_N, :, place_N] = value_NKD


def _decode(
    query_BHD: Tensor, keys: Tensor, values: Tensor, table_BX: Tensor, lengths_B: Tensor, out_BHD: Tensor
) -> None:
    (lanes, heads, width), (_, key_heads, page, _) = query_BHD.shape, keys.shape
    rows_I = _rows(table_BX[:, : -(-int(lengths_B.max()) // page)], key_heads)
    key_BKLD, value_BKLD = (_gather(states, rows_I, lanes) for states in (keys, values))
    query_BKGD = query_BHD.view(lanes, key_heads, heads // key_heads, width)
    unseen_BL = torch.arange(key_BKLD.shape[2], device=keys.device) >= lengths_B[:, None]
    score_BKGL = (query_BKGD @ key_BKLD.transpose(2, 3)).masked_fill_(unseen_BL[:, None, None], float("-inf"))
    out_BHD.copy_((score_BKGL.softmax(-1) @ value_BKLD).view(lanes, heads, width))
    # The softmax over nothing is not a number.
    out_BHD.masked_fill_((lengths_B == 0)[:, None, None], 0.0)


def _rows(pages_BX: Tensor, key_heads: int) -> Tensor:
    """Where the pages of each lane and key head, in that order, stand among the pages of all key heads."""
    heads_K = torch.arange(key_heads, dtype=pages_BX.dtype, device=pages_BX.device)
    return (pages_BX[:, None, :] * key_heads + heads_K[:, None]).flatten()


def _gather(states: Tensor, rows_I: Tensor, lanes: int) -> Tensor:
    """Pages side by side: lanes x key heads x tokens x head width, in one copy."""
    return states.flatten(0, 1).index_select(0, rows_I).view(lanes, states.shape[1], -1, states.shape[3])
