"""Logprob and entropy of chosen tokens, in one pass over the vocabulary and in chunks.

A tensor of all tokens times the whole vocabulary never exists: each chunk's logits are made, reduced and dropped,
and made again in the backward pass.

Suffixes: S scored tokens, V vocabulary, W model width.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from sleuth.errors import InputError

CHUNK = 4096


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
    """The fp32 logits that engine and trainer both start from."""
    out = (hidden_SW @ weight_VW.t()).float()
    return out if bias_V is None else out + bias_V.float()


def _chunk_scores(
    hidden_SW: Tensor, weight_VW: Tensor, bias_V: Tensor | None, target_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logprob_SV = torch.log_softmax(logits(hidden_SW, weight_VW, bias_V) / temperature, dim=-1)
    entropy_S = -(logprob_SV.exp() * logprob_SV).sum(-1)
    return logprob_SV.gather(-1, target_S[:, None]).squeeze(-1), entropy_S
