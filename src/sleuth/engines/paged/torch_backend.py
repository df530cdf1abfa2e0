"""Step operations in PyTorch: the implementation for CPUs, and the reference for the Triton kernels.

Pages of a sequence are gathered before attention, which would be slow on a GPU.

Suffixes: N packed tokens, B lanes, M tokens to sample, R those with truncated sampling, H heads, K key heads, G heads
of a group, D head width, S slots, X pages of the longest sequence, L tokens of those pages, I gathered pages,
V vocabulary; 4 settings: temperature, top_k, top_p, min_p (see Sampling).
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.model.attention import Tiles

QUERIES = 1024  # per tile: bounds the size of a mask
GATHER_BYTES = 1 << 21  # of keys per call, so that they stay in the processor's cache
MIN_TEMPERATURE = 1e-30  # below it logits / temperature would be infinite
BELOW_ONE = float(np.nextafter(1.0, 0.0))


def decode(
    query_BHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor, slots_B: Tensor, lengths_S: Tensor,
    scale: float, out_BHD: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attend from each lane's query to the first `lengths_S[slot]` tokens of its slot; zeros if there are none."""
    (lanes, heads, width), (_, key_heads, page, _) = query_BHD.shape, keys.shape
    if out_BHD is None:
        out_BHD = query_BHD.new_empty(lanes, heads, width)
    if not lanes:
        return out_BHD
    lengths_B = lengths_S[slots_B]
    longest = -(-int(lengths_B.max()) // page) * page
    some = max(1, GATHER_BYTES // (max(1, longest) * key_heads * width * keys.element_size()))
    for start in range(0, lanes, some):
        lane = slice(start, start + some)
        lengths, out = lengths_B[lane], out_BHD[lane]
        rows_I = _page_rows(table_SX[slots_B[lane], : -(-int(lengths.max()) // page)], key_heads)
        key_BKLD, value_BKLD = (_gather(states, rows_I, len(lengths)) for states in (keys, values))
        query_BKGD = (query_BHD[lane] * scale).view(-1, key_heads, heads // key_heads, width)
        hidden_BL = torch.arange(key_BKLD.shape[2], device=keys.device) >= lengths[:, None]
        score_BKGL = (query_BKGD @ key_BKLD.transpose(2, 3)).masked_fill_(hidden_BL[:, None, None], float("-inf"))
        out.copy_((score_BKGL.softmax(-1) @ value_BKLD).view(-1, heads, width))
        # The softmax of an empty sequence is NaN.
        out.masked_fill_((lengths == 0)[:, None, None], 0.0)
    return out_BHD


def tile_queries(heads: int, key_heads: int) -> int:  # noqa: ARG001  the Triton kernels need them
    return QUERIES


def prefill(
    query_NHD: Tensor, out_NHD: Tensor, keys: Tensor, values: Tensor, table_SX: Tensor, tiles: Tiles, scale: float
) -> None:
    """Write the causal attention of the tiles' queries over their slots; other rows of `out_NHD` stay unchanged."""
    (_, heads, width), (_, key_heads, page, _) = query_NHD.shape, keys.shape
    grouped = (key_heads, heads // key_heads, -1, width)
    columns = (tiles.first_T, tiles.slot_T, tiles.position_T, tiles.count_T)
    for first, slot, position, count in zip(*(column.tolist() for column in columns), strict=True):
        if not count:
            continue
        seen = position + count
        rows_I = _page_rows(table_SX[slot : slot + 1, : -(-seen // page)], key_heads)
        key, value = (_gather(states, rows_I, 1)[0, :, None, :seen].expand(grouped) for states in (keys, values))
        query = query_NHD[first : first + count].unflatten(1, grouped[:2]).permute(1, 2, 0, 3)
        # PyTorch's causal mask assumes that queries start at position 0; others need an explicit mask.
        continues = position > 0
        mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril_(position) if continues else None
        out = scaled_dot_product_attention(query, key, value, mask, is_causal=not continues, scale=scale)
        out_NHD[first : first + count] = out.permute(2, 0, 1, 3).flatten(1, 2)


def store(key_NKD: Tensor, value_NKD: Tensor, keys: Tensor, values: Tensor, addresses_N: Tensor) -> None:
    """Write keys and values of new tokens to their addresses, skipping tokens with address -1."""
    stored_N = addresses_N >= 0
    if not stored_N.all():
        key_NKD, value_NKD, addresses_N = key_NKD[stored_N], value_NKD[stored_N], addresses_N[stored_N]
    page_N, place_N = addresses_N // keys.shape[2], addresses_N % keys.shape[2]
    keys[page_N, :, place_N] = key_NKD
    values[page_N, :, place_N] = value_NKD


def _page_rows(pages_BX: Tensor, key_heads: int) -> Tensor:
    """Row indices of each lane's pages, per key head, in a cache flattened to pages x key heads."""
    heads_K = torch.arange(key_heads, dtype=pages_BX.dtype, device=pages_BX.device)
    return (pages_BX[:, None, :] * key_heads + heads_K[:, None]).flatten()


def _gather(states: Tensor, rows_I: Tensor, lanes: int) -> Tensor:
    """Gather pages as lanes x key heads x tokens x head width, in one copy."""
    return states.flatten(0, 1).index_select(0, rows_I).view(lanes, states.shape[1], -1, states.shape[3])


def next_inputs(
    slots_B: Tensor, tokens_S: Tensor, lengths_S: Tensor, table_SX: Tensor,
    ids_N: Tensor, positions_N: Tensor, addresses_N: Tensor,
) -> None:  # fmt: skip
    """Write each lane's next token, position and address, and increment its length, except for padding lanes."""
    lanes = len(slots_B)
    slots = slots_B.long()
    padding_B = slots == len(lengths_S) - 1
    position_B = lengths_S[slots].masked_fill(padding_B, 0)
    address_B = table_SX[slots, position_B // PAGE_SIZE] * PAGE_SIZE + position_B % PAGE_SIZE
    ids_N[:lanes] = tokens_S[slots]
    positions_N[:lanes] = position_B
    addresses_N[:lanes] = address_B.masked_fill(padding_B, -1)
    lengths_S[slots] = position_B + 1


def sample(
    logits_MV: Tensor, settings_S4: Tensor, slots_M: Tensor, uniform_M: Tensor,
    tokens_S: Tensor, out_M: Tensor, logprob_M: Tensor,
) -> None:  # fmt: skip
    """Sample one token per row with its slot's settings; write it to the slot and, with its logprob, to the outputs."""
    slots = slots_M.long()
    token_M, drawn_M = draw(logits_MV, settings_S4[slots], uniform_M)
    out_M.copy_(token_M)
    logprob_M.copy_(drawn_M)
    tokens_S[slots] = token_M.to(torch.int32)


def draw(logits_MV: Tensor, settings_M4: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token per row by inverting the truncated CDF at `uniform_M`; return the tokens and their logprobs."""
    greedy_M = settings_M4[:, 0] == 0
    temperature_M = torch.where(greedy_M, 1.0, settings_M4[:, 0].clamp_min(MIN_TEMPERATURE))
    logprob_MV = torch.log_softmax(logits_MV / temperature_M[:, None], dim=-1)
    mass_MV = logprob_MV.double().exp()
    _, top_k_M, top_p_M, min_p_M = settings_M4.unbind(-1)
    truncated_M = ((top_k_M > 0) & (top_k_M < logits_MV.shape[-1])) | (top_p_M < 1) | (min_p_M > 0)
    truncated_M &= ~greedy_M
    if truncated_M.any():
        threshold_R1 = _thresholds(logits_MV[truncated_M], mass_MV[truncated_M], settings_M4[truncated_M])
        mass_MV[truncated_M] = mass_MV[truncated_M].where(logits_MV[truncated_M] >= threshold_R1, 0.0)
    # The first token, in vocabulary order, at which the cumulative share exceeds `uniform_M`.
    cumulative_MV = mass_MV.cumsum(-1)
    # Scaled by the total, which differs from 1 by rounding and truncation, so that the last token is never passed.
    reached_M1 = uniform_M.double().clamp_max(BELOW_ONE)[:, None] * cumulative_MV[:, -1:]
    drawn_M = torch.searchsorted(cumulative_MV, reached_M1, right=True).squeeze(-1)
    # Out of range only for NaN logits, which the logprob reports; an invalid index would break the CUDA context.
    drawn_M = drawn_M.clamp_max(mass_MV.shape[-1] - 1)
    token_M = torch.where(greedy_M, logits_MV.argmax(-1), drawn_M)
    return token_M, logprob_MV.gather(-1, token_M[:, None]).squeeze(-1)


def _thresholds(logits_RV: Tensor, mass_RV: Tensor, settings_R4: Tensor) -> Tensor:
    """The lowest logit of each row that sampling may draw."""
    temperature_R1, top_k_R1, top_p_R1, min_p_R1 = settings_R4[:, :, None].unbind(1)
    vocabulary = logits_RV.shape[-1]
    sorted_RV, order_RV = logits_RV.sort(descending=True)
    last_R1 = torch.where(top_k_R1 > 0, top_k_R1, vocabulary).clamp_max(vocabulary).long() - 1
    by_count_R1 = sorted_RV.gather(-1, last_R1)
    cumulative_RV = mass_RV.gather(-1, order_RV).where(sorted_RV >= by_count_R1, 0.0).cumsum(-1)
    short_RV = cumulative_RV < top_p_R1.double() * cumulative_RV[:, -1:]
    reaching_R1 = short_RV.sum(-1, keepdim=True).clamp_max(vocabulary - 1)
    by_mass_R1 = sorted_RV.gather(-1, reaching_R1).where(top_p_R1 < 1, by_count_R1)
    by_best_R1 = sorted_RV[:, :1] + temperature_R1 * min_p_R1.log()
    return torch.maximum(torch.maximum(by_count_R1, by_mass_R1), by_best_R1)
