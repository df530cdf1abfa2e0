"""Triton kernels of a step: the lanes' next inputs, rotation with the store of keys and values, and sampling.

Pointwise kernels round exactly where the transformers modules round: to the model's dtype after every operation,
without fused multiply-add. Engine and training forward then differ only by the order of sums in matrix products.

The sampler reads the logits once, and one block of them again. The first pass reduces each block of the vocabulary to
its maximum and its sum of exponentials; the draw picks a block from these, then a token within it. Rows with top-k,
top-p or min-p first search for the lowest logit to keep, so ties stay together.

Suffixes: N packed tokens, X query, key and value heads side by side, H query heads, D head width, C positions,
M tokens to sample, V vocabulary, S slots, B lanes (in the sampler: blocks of the vocabulary), W thresholds tried at
once, T tile, 4 settings: temperature, top_k, top_p, min_p.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.model.kernels.rotary import norm_and_rotate

LANES = 128  # per program
BLOCK = 4096  # logits that one program sums, or draws from
TILE = 2048  # logits per iteration of a search
WAYS = 4  # thresholds per pass of a search: more cost arithmetic, fewer cost passes
SEARCH_WARPS = 16  # the sums of all ways are held in registers


# Parts of an uploaded batch may have any alignment: recompiling for each one would stall a step.
@triton.jit(do_not_specialize_on_alignment=["positions", "addresses"])
def _rotate_and_store(
    qkv, cos, sin, positions, addresses, keys, values, q_norm, k_norm, query, eps,
    heads: tl.constexpr, key_heads: tl.constexpr, half: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv.dtype.element_ty
    width: tl.constexpr = 2 * half
    token = tl.program_id(0).to(tl.int64)
    address = tl.load(addresses + token).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    angle = tl.load(positions + token).to(tl.int64) * width + column
    # Both halves of a table row are equal.
    cosine = tl.load(cos + angle, column < half, 0.0).to(tl.float32)
    sine = tl.load(sin + angle, column < half, 0.0).to(tl.float32)

    states = qkv + token * ((heads + 2 * key_heads) * width)
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < heads) & (column < half)
    place = query + token * (heads * width) + head * width + column
    left, right = norm_and_rotate(states, q_norm, cosine, sine, eps, heads, half, HEADS, HALF, dtype)
    tl.store(place, left, inside)
    tl.store(place + half, right, inside)

    if address >= 0:
        key = states + heads * width
        key_head = tl.arange(0, KEY_HEADS)[:, None]
        present = (key_head < key_heads) & (column < half)
        page = ((address // PAGE * key_heads + key_head) * PAGE + address % PAGE) * width + column
        key_left, key_right = norm_and_rotate(key, k_norm, cosine, sine, eps, key_heads, half, KEY_HEADS, HALF, dtype)
        tl.store(keys + page, key_left, present)
        tl.store(keys + page + half, key_right, present)
        value = key + (key_heads + key_head) * width + column
        tl.store(values + page, tl.load(value, present), present)
        tl.store(values + page + half, tl.load(value + half, present), present)


@triton.jit(do_not_specialize=["lanes"], do_not_specialize_on_alignment=["slots", "ids", "positions", "addresses"])
def _next_inputs(
    slots, tokens, lengths, table, ids, positions, addresses, lanes,
    padding: tl.constexpr, pages: tl.constexpr, PAGE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    there = lane < lanes
    slot = tl.load(slots + lane, there, padding)
    active = there & (slot != padding)
    before = tl.load(lengths + slot, active, 0)
    grows = active & (before < pages * PAGE)
    position = tl.minimum(before, pages * PAGE - 1)
    page = tl.load(table + slot.to(tl.int64) * pages + position // PAGE, grows, 0)
    tl.store(lengths + slot, position + 1, there)
    tl.store(ids + lane, tl.load(tokens + slot, there, 0), there)
    tl.store(positions + lane, position, there)
    tl.store(addresses + lane, tl.where(grows, page * PAGE + position % PAGE, -1), there)


def rotate_and_store(
    qkv_NX: Tensor, cos_CD: Tensor, sin_CD: Tensor, positions_N: Tensor, addresses_N: Tensor, keys: Tensor,
    values: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None, eps: float, heads: int, key_heads: int,
) -> Tensor:  # fmt: skip
    """Return the rotated queries, N x H x D, and store rotated keys and values of tokens with an address.

    Query and key heads are normed first if there are norms.
    """
    rows, half = len(qkv_NX), cos_CD.shape[1] // 2
    query_NHD = torch.empty(rows, heads, 2 * half, dtype=qkv_NX.dtype, device=qkv_NX.device)
    padded_heads, padded_half = triton.next_power_of_2(heads), triton.next_power_of_2(half)
    _rotate_and_store[(rows,)](
        qkv_NX, cos_CD, sin_CD, positions_N, addresses_N, keys, values, q_norm_D, k_norm_D, query_NHD, eps,
        heads, key_heads, half, padded_heads, triton.next_power_of_2(key_heads), padded_half, PAGE_SIZE,
        num_warps=min(8, max(1, padded_heads * padded_half // 256)), enable_fp_fusion=False,
    )  # fmt: skip
    return query_NHD


def next_inputs(
    slots_B: Tensor, tokens_S: Tensor, lengths_S: Tensor, table_SX: Tensor,
    ids_N: Tensor, positions_N: Tensor, addresses_N: Tensor,
) -> None:  # fmt: skip
    """Write each lane's next token, position and address, and increment its length.

    Padding lanes (of the last slot) and lanes whose table row is full get no address and do not grow.
    """
    lanes = len(slots_B)
    _next_inputs[(triton.cdiv(lanes, LANES),)](
        slots_B, tokens_S, lengths_S, table_SX, ids_N, positions_N, addresses_N, lanes,
        len(lengths_S) - 1, table_SX.shape[1], PAGE_SIZE, LANES, num_warps=4,
    )  # fmt: skip


@triton.jit
def _temperature(settings):
    """Temperature of a row: 1 if greedy, otherwise high enough that its inverse is finite."""
    temperature = tl.load(settings)
    return tl.where(temperature > 0, tl.maximum(temperature, 1e-30), 1.0)


@triton.jit
def _truncates(settings, V: tl.constexpr):
    top_k, top_p, min_p = tl.load(settings + 1), tl.load(settings + 2), tl.load(settings + 3)
    return (tl.load(settings) > 0) & (((top_k > 0) & (top_k < V)) | (top_p < 1) | (min_p > 0))


@triton.jit
def _exponentials(logits, highest, inverse):
    """exp((logits - highest) / temperature); 0 if all are -inf."""
    return tl.exp((logits - tl.where(highest > float("-inf"), highest, 0.0)) * inverse)


@triton.jit
def _ordered(number):
    """Map a float to an integer with the same order; `_float` is the inverse."""
    bits = number.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float(ordered):
    bits = ordered.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _sum_blocks(
    logits, stride, settings, slots, maxima, minima, sums,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    inverse = 1.0 / _temperature(settings + tl.load(slots + row).to(tl.int64) * 4)
    place = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row * stride + place, place < V, float("-inf"))
    highest = tl.max(values, 0)
    out = row * BLOCKS + block
    tl.store(maxima + out, highest)
    tl.store(minima + out, tl.min(tl.where(values > float("-inf"), values, float("inf")), 0))
    tl.store(sums + out, tl.sum(_exponentials(values, highest, inverse), 0))


@triton.jit
def _split(low, high, by_value, WAYS: tl.constexpr):
    """Thresholds in (low, high], including `high`, evenly spaced by value or by bits."""
    part_W = tl.arange(0, WAYS) + 1
    share_W = part_W.to(tl.float32) / WAYS
    values_W = _ordered(_float(low) * (1 - share_W) + _float(high) * share_W).to(tl.int64)
    bits_W = low + ((high - low) * part_W + (WAYS - 1)) // WAYS
    return tl.where(by_value, tl.minimum(tl.maximum(values_W, low + 1), high), bits_W)


@triton.jit
def _search(
    logits, lowest, highest, inverse, needed, mass,
    BY_COUNT: tl.constexpr, V: tl.constexpr, TILE: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The highest threshold in [lowest, highest] that keeps the needed count or mass, and the mass it keeps.

    `lowest` must keep enough; `mass` is what it keeps. Exact: ends when only one logit or float is between the bounds.
    """
    low, high = _ordered(lowest).to(tl.int64), _ordered(highest).to(tl.int64)
    least = tl.full((), V, tl.int32)  # upper bound of logits >= low
    above = tl.full((), 0, tl.int32)  # logits > high
    passes = tl.full((), 0, tl.int32)
    while (low < high) & (least - above > 1):
        # By value at first: half of all floats are between -1 and 1, mostly where there are no logits.
        tried_W = _split(low, high, passes < 6, WAYS)
        counts_WT = tl.zeros((WAYS, TILE), tl.int32)
        masses_WT = tl.zeros((WAYS, TILE), tl.float32)
        for start in range(0, V, TILE):
            # Two-dimensional from the start, so that each thread sums what it reads.
            place_1T = start + tl.arange(0, TILE)[None, :]
            values_1T = tl.load(logits + place_1T, place_1T < V, float("-inf"))
            kept_WT = values_1T >= _float(tried_W)[:, None]
            counts_WT += kept_WT.to(tl.int32)
            masses_WT += tl.where(kept_WT, _exponentials(values_1T, highest, inverse), 0.0)
        count_W, mass_W = tl.sum(counts_WT, 1), tl.sum(masses_WT, 1)
        reached_W = (count_W if BY_COUNT else mass_W) >= needed
        # Counts and masses fall as thresholds rise, so the smallest sufficient one is the highest threshold's.
        least = tl.min(tl.where(reached_W, count_W, least), 0)
        mass = tl.min(tl.where(reached_W, mass_W, mass), 0)
        above = tl.max(tl.where(reached_W, above, count_W), 0)
        low, high = (
            tl.max(tl.where(reached_W, tried_W, low), 0),
            tl.min(tl.where(reached_W, high, tried_W - 1), 0),
        )
        passes += 1
    return _float(low), mass


@triton.jit
def _threshold(
    logits, settings, lowest, highest, total, temperature,
    V: tl.constexpr, TILE: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The lowest logit of a row that may be drawn."""
    top_k, top_p, min_p = tl.load(settings + 1), tl.load(settings + 2), tl.load(settings + 3)
    inverse = 1.0 / temperature
    mass = total
    if (top_k > 0) & (top_k < V):
        lowest, mass = _search(
            logits, lowest, highest, inverse, top_k.to(tl.int32), mass, BY_COUNT=True, V=V, TILE=TILE, WAYS=WAYS
        )
    if top_p < 1:
        # All logits below this one together have less than 1 - top_p of the mass: start the search there.
        sure = highest + temperature * (tl.log((1 - top_p) / V) - 0.1)
        lowest, mass = _search(
            logits, tl.maximum(lowest, sure), highest, inverse, top_p * mass, mass,
            BY_COUNT=False, V=V, TILE=TILE, WAYS=WAYS,
        )  # fmt: skip
    if min_p > 0:
        lowest = tl.maximum(lowest, highest + temperature * tl.log(min_p))
    return lowest


@triton.jit
def _truncate(
    logits, stride, settings, slots, maxima, minima, sums, kept, thresholds,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    settings += tl.load(slots + row).to(tl.int64) * 4
    if _truncates(settings, V):
        logits += row * stride
        block_B = tl.arange(0, BLOCKS)
        there_B = block_B * BLOCK < V
        maxima_B = tl.load(maxima + row * BLOCKS + block_B, there_B, float("-inf"))
        highest = tl.max(maxima_B, 0)
        lowest = tl.min(tl.load(minima + row * BLOCKS + block_B, there_B, float("inf")), 0)
        temperature = _temperature(settings)
        inverse = 1.0 / temperature
        sums_B = tl.load(sums + row * BLOCKS + block_B, there_B, 0.0)
        total = tl.sum(sums_B * _exponentials(maxima_B, highest, inverse), 0)
        threshold = tl.full((), float("-inf"), tl.float32)
        if total > 0:  # False for NaN logits
            threshold = _threshold(logits, settings, lowest, highest, total, temperature, V=V, TILE=TILE, WAYS=WAYS)
        tl.store(thresholds + row, threshold)
        for block in range(0, BLOCKS):
            place = block * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(logits + place, place < V, float("-inf"))
            of_block = tl.load(maxima + row * BLOCKS + block, block * BLOCK < V, float("-inf"))
            shares = tl.where(values >= threshold, _exponentials(values, of_block, inverse), 0.0)
            tl.store(kept + row * BLOCKS + block, tl.sum(shares, 0))


@triton.jit
def _draw(
    logits, stride, settings, slots, uniform, maxima, sums, kept, thresholds, tokens, out, logprobs,
    V: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    settings += slot * 4
    temperature = _temperature(settings)
    inverse = 1.0 / temperature
    block_B = tl.arange(0, BLOCKS)
    there_B = block_B * BLOCK < V
    maxima_B = tl.load(maxima + row * BLOCKS + block_B, there_B, float("-inf"))
    sums_B = tl.load(sums + row * BLOCKS + block_B, there_B, 0.0)
    kept_B = sums_B
    threshold = tl.full((), float("-inf"), tl.float32)
    if _truncates(settings, V):
        kept_B = tl.load(kept + row * BLOCKS + block_B, there_B, 0.0)
        threshold = tl.load(thresholds + row)
    highest = tl.max(maxima_B, 0)

    scale_B = _exponentials(maxima_B, highest, inverse).to(tl.float64)
    total = tl.sum(sums_B.to(tl.float64) * scale_B, 0)
    mass_B = kept_B.to(tl.float64) * scale_B
    share = tl.minimum(tl.load(uniform + row), 0.99999994).to(tl.float64)  # 1 after rounding would pass every token
    target = share * tl.sum(mass_B, 0)
    passing_B = (tl.cumsum(mass_B, 0) > target) & (mass_B > 0)
    block = tl.min(tl.where(passing_B, block_B, BLOCKS), 0)
    block = tl.where(block < BLOCKS, block, tl.max(tl.where(mass_B > 0, block_B, 0), 0))
    greedy = tl.load(settings) <= 0
    block = tl.where(greedy, tl.min(tl.where(maxima_B == highest, block_B, BLOCKS - 1), 0), block)

    inside = tl.arange(0, BLOCK)
    place = block * BLOCK + inside
    logits += row * stride
    values = tl.load(logits + place, place < V, float("-inf"))
    best = tl.max(tl.where(block_B == block, maxima_B, float("-inf")), 0)
    shares = tl.where(values >= threshold, _exponentials(values, best, inverse), 0.0).to(tl.float64)
    before = tl.sum(tl.where(block_B < block, mass_B, 0.0), 0)
    scale = tl.sum(tl.where(block_B == block, scale_B, 0.0), 0)
    passing = (tl.cumsum(shares, 0) * scale > target - before) & (shares > 0)
    drawn = tl.min(tl.where(passing, inside, BLOCK), 0)
    # Rounding may leave a block's sum short of the target: then take its last token that may be drawn.
    drawn = tl.where(drawn < BLOCK, drawn, tl.max(tl.where(shares > 0, inside, 0), 0))
    drawn = tl.where(greedy, tl.min(tl.where(values == highest, inside, BLOCK - 1), 0), drawn)
    token = tl.minimum(block * BLOCK + drawn, V - 1)  # past the end only for NaN logits
    logit = tl.load(logits + token)
    tl.store(tokens + slot, token)
    tl.store(out + row, token)
    tl.store(logprobs + row, (logit - highest) / temperature - tl.log(total.to(tl.float32)))


def sample(
    logits_MV: Tensor, settings_S4: Tensor, slots_M: Tensor, uniform_M: Tensor,
    tokens_S: Tensor, out_M: Tensor, logprob_M: Tensor,
) -> None:  # fmt: skip
    """Sample one token per row with its slot's settings; write it to the slot and, with its logprob, to the outputs.

    NaN logits give a NaN logprob and an arbitrary token.
    """
    rows, vocabulary = logits_MV.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    padded = triton.next_power_of_2(blocks)
    partial_4MB = torch.empty(4, rows, padded, dtype=torch.float32, device=logits_MV.device)
    maxima_MB, minima_MB, sums_MB, kept_MB = partial_4MB.unbind()
    threshold_M = torch.empty(rows, dtype=torch.float32, device=logits_MV.device)
    given = (logits_MV, logits_MV.stride(0), settings_S4, slots_M)
    sizes = {"V": vocabulary, "BLOCK": BLOCK, "BLOCKS": padded}
    _sum_blocks[(blocks, rows)](*given, maxima_MB, minima_MB, sums_MB, **sizes, num_warps=4, enable_fp_fusion=False)
    _truncate[(rows,)](
        *given, maxima_MB, minima_MB, sums_MB, kept_MB, threshold_M, **sizes, TILE=TILE, WAYS=WAYS,
        num_warps=SEARCH_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    _draw[(rows,)](
        *given, uniform_M, maxima_MB, sums_MB, kept_MB, threshold_M, tokens_S, out_M, logprob_M, **sizes,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
