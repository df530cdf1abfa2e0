"""Logprob and entropy of chosen tokens, in one pass over the vocabulary and in chunks.

A tensor of all tokens times the whole vocabulary never exists: each chunk's logits are made, reduced and dropped,
and made again in the backward pass. On a GPU in half precision a kernel reduces them, and another turns them into their
gradient; elsewhere PyTorch's operations do.

Suffixes: S scored tokens, V vocabulary, W model width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from sleuth.errors import InputError

CHUNK = 4096  # tokens, where no kernel reduces their logits
BYTES = 5 << 28  # of the logits of a chunk, at most, where one does
ROWS = 512  # of which the chunks are multiples, so that their products fill whole rounds of a GPU's processors
TILE = 128  # rows of such a product that are computed together
HALVES = (torch.bfloat16, torch.float16)
ALIGNED = 8  # numbers of half precision in 16 bytes


def projection(model: PreTrainedModel) -> nn.Linear:
    """The layer that makes logits of hidden states."""
    found = model.get_output_embeddings()
    if not isinstance(found, nn.Linear):
        raise InputError(
            f"{type(model).__name__} makes its logits with {type(found).__name__}, expected one linear layer: "
            "choose another model"
        )
    return found


def scores(
    hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """log-softmax(logits / temperature) of each target, and the entropy of each distribution, in fp32."""
    if weight_VW.is_cuda and hidden_SW.dtype == weight_VW.dtype and weight_VW.dtype in HALVES:
        rows = chunk_rows(len(hidden_SW), len(weight_VW))
        call = (hidden_SW, weight_VW, bias_V, target_S, temperature, rows)
        found: tuple[Tensor, Tensor] = Scores.apply(*call)  # type: ignore[no-untyped-call]
        return found
    logprobs, entropies = [], []
    # One chunk at least, so that no tokens have a gradient too: of zero.
    for start in range(0, max(1, len(target_S)), CHUNK):
        chunk = slice(start, start + CHUNK)
        logprob, entropy = checkpoint(
            _chunk_scores, hidden_SW[chunk], weight_VW, bias_V, target_S[chunk], temperature, use_reentrant=False
        )
        logprobs.append(logprob)
        entropies.append(entropy)
    return torch.cat(logprobs), torch.cat(entropies)


def chunk_rows(tokens: int, words: int) -> int:
    """How many tokens' logits a chunk holds on a GPU: the same number in each, but for the last."""
    most = max(ROWS, BYTES // (4 * words) // ROWS * ROWS)
    even = -(-tokens // max(1, -(-tokens // most)))
    return min(tokens, most, -(-even // TILE) * TILE)


class Scores(torch.autograd.Function):
    """Keeps the hidden states and three numbers a token; holds the logits of one chunk at a time, both ways."""

    @staticmethod
    def forward(
        ctx: Any, hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        from sleuth.model.kernels import head

        logs_S, logprob_S, entropy_S = torch.empty(3, len(target_S), dtype=torch.float32, device=hidden_SW.device)
        for chunk, logits_SV in _chunks(hidden_SW, weight_VW, rows):
            numbers = (each[chunk] for each in (logs_S, logprob_S, entropy_S))
            head.scores(logits_SV, bias_V, target_S[chunk], temperature, *numbers)
        ctx.save_for_backward(hidden_SW, weight_VW, bias_V, target_S, logs_S, entropy_S)
        ctx.temperature, ctx.rows = temperature, rows
        return logprob_S, entropy_S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import head

        hidden_SW, weight_VW, bias_V, target_S, logs_S, entropy_S = ctx.saved_tensors
        to_logprob_S, to_entropy_S = (each.contiguous() for each in gradients)
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]
        sums = _Sums(hidden_SW, weight_VW, of_hidden, of_weight, of_bias)
        room_SV = _aligned(ctx.rows, len(weight_VW), weight_VW.dtype, hidden_SW.device)
        for chunk, logits_SV in _chunks(hidden_SW, weight_VW, ctx.rows):
            gradient_SV = room_SV[: len(logits_SV)]
            head.gradient(
                logits_SV, bias_V, target_S[chunk], ctx.temperature, logs_S[chunk], entropy_S[chunk],
                to_logprob_S[chunk], to_entropy_S[chunk], gradient_SV,
            )  # fmt: skip
            sums.add(chunk, gradient_SV)
        return *sums.taken(bias_V), None, None, None


class _Sums:
    """Gradients of hidden states, weight and bias as the gradients of logits arrive; of the latter two in fp32."""

    def __init__(self, hidden_SW: Tensor, weight_VW: Tensor, of_hidden: bool, of_weight: bool, of_bias: bool) -> None:
        self._hidden_SW, self._weight_VW = hidden_SW, weight_VW
        self._to_hidden_SW = torch.empty_like(hidden_SW, memory_format=torch.contiguous_format) if of_hidden else None
        self._to_weight_VW = torch.zeros_like(weight_VW, dtype=torch.float32) if of_weight else None
        self._to_bias_V = weight_VW.new_zeros(len(weight_VW), dtype=torch.float32) if of_bias else None

    def add(self, chunk: slice, gradient_SV: Tensor) -> None:
        if self._to_hidden_SW is not None:
            torch.mm(gradient_SV, self._weight_VW, out=self._to_hidden_SW[chunk])
        if self._to_weight_VW is not None:
            _add_wide(self._to_weight_VW, gradient_SV.t(), self._hidden_SW[chunk])
        if self._to_bias_V is not None:
            self._to_bias_V += gradient_SV.sum(0, dtype=torch.float32)

    def taken(self, bias_V: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The three in the dtypes of what they are of."""
        to_weight_VW = None if self._to_weight_VW is None else self._to_weight_VW.to(self._weight_VW.dtype)
        to_bias_V = None if self._to_bias_V is None or bias_V is None else self._to_bias_V.to(bias_V.dtype)
        return self._to_hidden_SW, to_weight_VW, to_bias_V


def _chunks(hidden_SW: Tensor, weight_VW: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Logits of some tokens after others, without bias, all in the same memory."""
    tokens = len(hidden_SW)
    room_SV = _aligned(rows, len(weight_VW), torch.float32, hidden_SW.device)
    for start in range(0, tokens, max(1, rows)):
        chunk = slice(start, min(start + rows, tokens))
        yield chunk, _wide(hidden_SW[chunk], weight_VW, room_SV[: chunk.stop - start])


def _wide(hidden_SW: Tensor, weight_VW: Tensor, out_SV: Tensor) -> Tensor:
    """The product of half-precision matrices, summed and left in fp32."""
    if weight_VW.is_cuda and weight_VW.dtype in HALVES:
        return torch.mm(hidden_SW, weight_VW.t(), out_dtype=torch.float32, out=out_SV)
    return torch.mm(hidden_SW.float(), weight_VW.float().t(), out=out_SV)


def _add_wide(sum_VW: Tensor, left_VS: Tensor, right_SW: Tensor) -> None:
    """Adds a product of half-precision matrices to an fp32 sum, which nothing rounds on the way."""
    if right_SW.is_cuda and right_SW.dtype in HALVES:
        torch.addmm(sum_VW, left_VS, right_SW, out_dtype=torch.float32, out=sum_VW)
    else:
        sum_VW.addmm_(left_VS.float(), right_SW.float())


def logits(hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None) -> Tensor:
    """The fp32 logits that engine and trainer both start from, never rounded to less on the way."""
    out = _product(hidden_SW, weight_VW)
    return out if bias_V is None else out + bias_V.float()


def _product(hidden_SW: Tensor, weight_VW: Tensor) -> Tensor:
    if weight_VW.dtype not in HALVES:
        return (hidden_SW @ weight_VW.t()).float()
    if not weight_VW.is_cuda:
        return hidden_SW.float() @ weight_VW.float().t()
    out: Tensor = _Wide.apply(hidden_SW, weight_VW)  # type: ignore[no-untyped-call]
    return out


class _Wide(torch.autograd.Function):
    """The product of half-precision matrices summed and left in fp32, which torch computes but does not derive."""

    @staticmethod
    def forward(ctx: Any, hidden_SW: Tensor, weight_VW: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_SW, weight_VW)
        return _wide(hidden_SW, weight_VW, _aligned(len(hidden_SW), len(weight_VW), torch.float32, hidden_SW.device))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden_SW, weight_VW = ctx.saved_tensors
        of_hidden, of_weight = ctx.needs_input_grad
        gradient_SV = _aligned(len(hidden_SW), len(weight_VW), weight_VW.dtype, hidden_SW.device).copy_(gradients[0])
        return gradient_SV @ weight_VW if of_hidden else None, gradient_SV.t() @ hidden_SW if of_weight else None


def _aligned(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty matrix whose rows begin at multiples of 16 bytes, of whatever many columns.

    Products of rows that begin elsewhere, as those of an odd vocabulary, are computed by other kernels, and few.
    """
    return torch.empty(rows, -(-columns // ALIGNED) * ALIGNED, dtype=dtype, device=device)[:, :columns]


def _chunk_scores(
    hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logprob_SV = torch.log_softmax(logits(hidden_SW, weight_VW, bias_V) / temperature, dim=-1)
    entropy_S = -(logprob_SV.exp() * logprob_SV).sum(-1)
    return logprob_SV.gather(-1, target_S[:, None]).squeeze(-1), entropy_S
