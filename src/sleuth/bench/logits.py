"""Whether the lm_head ever holds the logits of all tokens at once, told by its memory.

Suffixes: S scored tokens, V vocabulary, W model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from sleuth.bench.device import forget_peak, here, release
from sleuth.model import lm_head
from sleuth.train.metrics import GIB


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that the lm_head takes more for twice the tokens, and those of the logits of as many, in half precision."""

    grown: int
    logits: int

    @property
    def chunked(self) -> bool:
        """Whether no tensor of tokens times vocabulary can have been made."""
        return self.grown < self.logits

    def told(self) -> str:
        """The same in a sentence."""
        verdict = "none was made" if self.chunked else "ONE MAY HAVE BEEN MADE"
        return (
            f"Twice the tokens took the lm_head {self.grown / GIB:.2f} GiB more, forwards and backwards; a tensor of "
            f"tokens times vocabulary would have taken {self.logits / GIB:.2f} GiB more: {verdict}."
        )


def growth(shape: PretrainedConfig, tokens: int) -> Growth | None:
    """Measured on the lm_head alone, where logits are made; None on a CPU, where nobody counts memory."""
    device = here()
    if device.type != "cuda":
        return None
    words, wide = int(shape.vocab_size), int(shape.hidden_size)
    weight_VW = torch.randn(words, wide, dtype=torch.bfloat16, device=device).mul_(0.02).requires_grad_()
    few, many = (_peak_bytes(weight_VW, count) for count in (tokens, 2 * tokens))
    return Growth(many - few, tokens * words * weight_VW.element_size())


def _peak_bytes(weight_VW: Tensor, tokens: int) -> int:
    device = weight_VW.device
    hidden_SW = torch.randn(tokens, weight_VW.shape[1], dtype=weight_VW.dtype, device=device, requires_grad=True)
    target_S = torch.randint(len(weight_VW), (tokens,), device=device)
    release(device)
    forget_peak(device)
    before = torch.cuda.memory_allocated(device)
    logprob_S, entropy_S = lm_head.score_tokens(hidden_SW, weight_VW, None, target_S, 1.0)
    (logprob_S.sum() + entropy_S.sum()).backward()
    weight_VW.grad = None
    return torch.cuda.max_memory_allocated(device) - before
