"""Triton kernels for logprobs and entropies of logits: one pass forward, one backward.

With z = logits / temperature and l = log(sum(exp(z))), the logprob of a target t is z_t - l and the entropy
l - sum(p * z), where p = exp(z - l). Their derivatives with respect to z_j are [j = t] - p_j and
-p_j * (z_j - l + entropy).

Suffixes: S tokens, V vocabulary.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits per iteration


@triton.jit
def _scaled(logits, bias, place, vocabulary, inverse):
    """logits / temperature; -inf past the vocabulary."""
    value = tl.load(logits + place, place < vocabulary, float("-inf"))
    if bias is not None:
        value += tl.load(bias + place, place < vocabulary, 0.0).to(tl.float32)
    return value * inverse


@triton.jit
def _scores(logits, bias, targets, logs, logprobs, entropies, stride, vocabulary, inverse, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    highest = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    mean = tl.full((), 0.0, tl.float32)
    for start in range(0, vocabulary, BLOCK):
        place = start + tl.arange(0, BLOCK)
        z = _scaled(logits, bias, place, vocabulary, inverse)
        higher = tl.maximum(highest, tl.max(z, 0))
        fade = tl.exp(highest - higher)
        share = tl.exp(z - higher)
        total = total * fade + tl.sum(share, 0)
        mean = mean * fade + tl.sum(share * tl.where(share > 0, z, 0.0), 0)
        highest = higher
    log = highest + tl.log(total)
    target = tl.load(targets + row)
    chosen = _scaled(logits, bias, target, vocabulary, inverse)
    tl.store(logs + row, log)
    tl.store(logprobs + row, chosen - log)
    tl.store(entropies + row, log - mean / total)


@triton.jit
def _gradient(
    logits, bias, targets, logs, entropies, to_logprobs, to_entropies, out, stride, out_stride, vocabulary, inverse,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = _scaled(logits + row * stride, bias, place, vocabulary, inverse)
    lowered = z - tl.load(logs + row)
    share = tl.exp(lowered)
    to_logprob, to_entropy = tl.load(to_logprobs + row), tl.load(to_entropies + row)
    chosen = tl.where(place == tl.load(targets + row), to_logprob, 0.0)
    # 0 * log(0) counts as 0.
    surprise = tl.where(share > 0, lowered + tl.load(entropies + row), 0.0)
    to_z = chosen - share * (to_logprob + to_entropy * surprise)
    tl.store(out + row * out_stride + place, (to_z * inverse).to(out.dtype.element_ty), place < vocabulary)


def score_logits(
    logits_SV: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float,
    logs_S: Tensor, logprob_S: Tensor, entropy_S: Tensor,
) -> None:  # fmt: skip
    """Write each row's log-sum-exp, the logprob of its target and its entropy."""
    tokens, vocabulary = logits_SV.shape
    if tokens:
        _scores[(tokens,)](
            logits_SV, bias_V, target_S, logs_S, logprob_S, entropy_S, logits_SV.stride(0), vocabulary, 1 / temperature,
            BLOCK=min(BLOCK, triton.next_power_of_2(vocabulary)), num_warps=8,
        )  # fmt: skip


def score_logits_backward(
    logits_SV: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float, logs_S: Tensor, entropy_S: Tensor,
    to_logprob_S: Tensor, to_entropy_S: Tensor, out_SV: Tensor,
) -> None:  # fmt: skip
    """Write the gradient of the logits, given the gradients of logprob and entropy."""
    tokens, vocabulary = logits_SV.shape
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    if tokens:
        _gradient[(tokens, triton.cdiv(vocabulary, block))](
            logits_SV, bias_V, target_S, logs_S, entropy_S, to_logprob_S, to_entropy_S, out_SV,
            logits_SV.stride(0), out_SV.stride(0), vocabulary, 1 / temperature, BLOCK=block, num_warps=8,
        )  # fmt: skip
