"""Logprobs and entropies of chosen tokens, computed in chunks of the vocabulary projection.

The full tokens x vocabulary tensor never exists: each chunk's logits are computed, reduced, dropped, and computed again
in the backward pass. On a GPU in half precision Triton kernels reduce them; elsewhere PyTorch operations do.

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

CHUNK = 4096  # tokens, without the kernels
CHUNK_BYTES = 5 << 28  # maximum size of a chunk's logits, with the kernels
CHUNK_MULTIPLE = 512  # tokens, so that products fill whole waves of a GPU
TILE = 128  # rows of a product that are computed together
HALF_DTYPES = (torch.bfloat16, torch.float16)
ALIGNMENT = 8  # half-precision numbers in 16 bytes


def output_projection(model: PreTrainedModel) -> nn.Linear:
    """The linear layer that computes logits."""
    found = model.get_output_embeddings()
    if not isinstance(found, nn.Linear):
        raise InputError(
            f"{type(model).__name__} computes logits with {type(found).__name__}, expected a linear layer: "
            "choose another model"
        )
    return found


def score_tokens(
    hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """log-softmax(logits / temperature) of each target, and the entropy of each distribution, in fp32."""
    if weight_VW.is_cuda and hidden_SW.dtype == weight_VW.dtype and weight_VW.dtype in HALF_DTYPES:
        rows = chunk_rows(len(hidden_SW), len(weight_VW))
        call = (hidden_SW, weight_VW, bias_V, target_S, temperature, rows)
        found: tuple[Tensor, Tensor] = ScoreTokens.apply(*call)  # type: ignore[no-untyped-call]
        return found

    def score_chunk(hidden_SW: Tensor, target_S: Tensor) -> tuple[Tensor, Tensor]:
        logprob_SV = torch.log_softmax(logits(hidden_SW, weight_VW, bias_V) / temperature, dim=-1)
        entropy_S = -(logprob_SV.exp() * logprob_SV).sum(-1)
        return logprob_SV.gather(-1, target_S[:, None]).squeeze(-1), entropy_S

    # At least one chunk, so that zero tokens have a gradient (of zero) too.
    chunks = [slice(start, start + CHUNK) for start in range(0, max(1, len(target_S)), CHUNK)]
    scores = [checkpoint(score_chunk, hidden_SW[each], target_S[each], use_reentrant=False) for each in chunks]
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def chunk_rows(tokens: int, vocabulary: int) -> int:
    """Tokens per chunk on a GPU: equal for all chunks but the last."""
    most = max(CHUNK_MULTIPLE, CHUNK_BYTES // (4 * vocabulary) // CHUNK_MULTIPLE * CHUNK_MULTIPLE)
    even = -(-tokens // max(1, -(-tokens // most)))
    return min(tokens, most, -(-even // TILE) * TILE)


class ScoreTokens(torch.autograd.Function):
    """Scores tokens one chunk of logits at a time; saves only the hidden states and three numbers per token."""

    @staticmethod
    def forward(
        ctx: Any, hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        from sleuth.model.kernels.lm_head import score_logits

        logs_S, logprob_S, entropy_S = torch.empty(3, len(target_S), dtype=torch.float32, device=hidden_SW.device)
        for chunk, logits_SV in _logit_chunks(hidden_SW, weight_VW, rows):
            outputs = (each[chunk] for each in (logs_S, logprob_S, entropy_S))
            score_logits(logits_SV, bias_V, target_S[chunk], temperature, *outputs)
        ctx.save_for_backward(hidden_SW, weight_VW, bias_V, target_S, logs_S, entropy_S)
        ctx.temperature, ctx.rows = temperature, rows
        return logprob_S, entropy_S

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sum the gradients of weight and bias over the chunks in fp32."""
        from sleuth.model.kernels.lm_head import score_logits_backward

        hidden_SW, weight_VW, bias_V, target_S, logs_S, entropy_S = ctx.saved_tensors
        to_logprob_S, to_entropy_S = (each.contiguous() for each in gradients)
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]
        to_hidden_SW = torch.empty_like(hidden_SW, memory_format=torch.contiguous_format) if of_hidden else None
        to_weight_VW = torch.zeros_like(weight_VW, dtype=torch.float32) if of_weight else None
        to_bias_V = weight_VW.new_zeros(len(weight_VW), dtype=torch.float32) if of_bias else None
        buffer_SV = _empty_aligned(ctx.rows, len(weight_VW), weight_VW.dtype, hidden_SW.device)
        for chunk, logits_SV in _logit_chunks(hidden_SW, weight_VW, ctx.rows):
            gradient_SV = buffer_SV[: len(logits_SV)]
            score_logits_backward(
                logits_SV, bias_V, target_S[chunk], ctx.temperature, logs_S[chunk], entropy_S[chunk],
                to_logprob_S[chunk], to_entropy_S[chunk], gradient_SV,
            )  # fmt: skip
            if to_hidden_SW is not None:
                torch.mm(gradient_SV, weight_VW, out=to_hidden_SW[chunk])
            if to_weight_VW is not None:
                if weight_VW.is_cuda and weight_VW.dtype in HALF_DTYPES:
                    call = (to_weight_VW, gradient_SV.t(), hidden_SW[chunk])
                    torch.addmm(*call, out_dtype=torch.float32, out=to_weight_VW)
                else:
                    to_weight_VW.addmm_(gradient_SV.t().float(), hidden_SW[chunk].float())
            if to_bias_V is not None:
                to_bias_V += gradient_SV.sum(0, dtype=torch.float32)
        to_weight = None if to_weight_VW is None else to_weight_VW.to(weight_VW.dtype)
        to_bias = None if to_bias_V is None or bias_V is None else to_bias_V.to(bias_V.dtype)
        return to_hidden_SW, to_weight, to_bias, None, None, None


def _logit_chunks(hidden_SW: Tensor, weight_VW: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield logits without bias, chunk by chunk; every chunk reuses the same memory."""
    tokens = len(hidden_SW)
    buffer_SV = _empty_aligned(rows, len(weight_VW), torch.float32, hidden_SW.device)
    for start in range(0, tokens, max(1, rows)):
        chunk = slice(start, min(start + rows, tokens))
        yield chunk, _product_in_fp32(hidden_SW[chunk], weight_VW, buffer_SV[: chunk.stop - start])


def _product_in_fp32(hidden_SW: Tensor, weight_VW: Tensor, out_SV: Tensor) -> Tensor:
    if weight_VW.is_cuda and weight_VW.dtype in HALF_DTYPES:
        return torch.mm(hidden_SW, weight_VW.t(), out_dtype=torch.float32, out=out_SV)
    return torch.mm(hidden_SW.float(), weight_VW.float().t(), out=out_SV)


def logits(hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None) -> Tensor:
    """The fp32 logits of engine and trainer, never rounded to half precision."""
    if weight_VW.dtype not in HALF_DTYPES:
        out_SV = (hidden_SW @ weight_VW.t()).float()
    elif not weight_VW.is_cuda:
        out_SV = hidden_SW.float() @ weight_VW.float().t()
    else:
        out_SV = _MixedProduct.apply(hidden_SW, weight_VW)  # type: ignore[no-untyped-call]
    return out_SV if bias_V is None else out_SV + bias_V.float()


class _MixedProduct(torch.autograd.Function):
    """fp32 product of half-precision matrices, for which torch has no derivative."""

    @staticmethod
    def forward(ctx: Any, hidden_SW: Tensor, weight_VW: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_SW, weight_VW)
        out_SV = _empty_aligned(len(hidden_SW), len(weight_VW), torch.float32, hidden_SW.device)
        return _product_in_fp32(hidden_SW, weight_VW, out_SV)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden_SW, weight_VW = ctx.saved_tensors
        of_hidden, of_weight = ctx.needs_input_grad
        gradient_SV = _empty_aligned(len(hidden_SW), len(weight_VW), weight_VW.dtype, hidden_SW.device)
        gradient_SV.copy_(gradients[0])
        return gradient_SV @ weight_VW if of_hidden else None, gradient_SV.t() @ hidden_SW if of_weight else None


def _empty_aligned(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty matrix whose rows start at multiples of 16 bytes; unaligned products use other, slower kernels."""
    return torch.empty(rows, -(-columns // ALIGNMENT) * ALIGNMENT, dtype=dtype, device=device)[:, :columns]
