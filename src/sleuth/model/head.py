"""Logprob and entropy of chosen tokens, in one pass over the vocabulary and in chunks.

A tensor of all tokens times the whole vocabulary never exists: each chunk's logits are made, reduced and dropped,
and made again in the backward pass.

Suffixes: S scored tokens, V vocabulary, W model width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from sleuth.errors import InputError

CHUNK = 4096
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
        out_SV = _aligned(len(hidden_SW), len(weight_VW), torch.float32, hidden_SW.device)
        return torch.mm(hidden_SW, weight_VW.t(), out_dtype=torch.float32, out=out_SV)

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
