"""Sampling one token a row, with its logprob.

Suffixes: R rows, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, count: int) -> np.ndarray:
    """The random numbers of one request, one a token: they depend on its seed alone, not on its neighbours."""
    return np.random.Generator(np.random.Philox(seed)).random(count)


def sample(logits_RV: Tensor, temperature_R: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """Token and logprob of each row: its distribution inverted at `uniform_R`, or the best where temperature is 0."""
    greedy_R = temperature_R == 0
    logprob_RV = torch.log_softmax(logits_RV / torch.where(greedy_R, 1.0, temperature_R)[:, None], dim=-1)
    cumulative_RV = logprob_RV.double().exp().cumsum(-1)
    # Scaled by the total, which rounding leaves a little off 1, so that the last token is never passed.
    threshold_R1 = uniform_R[:, None] * cumulative_RV[:, -1:]
    drawn_R = torch.searchsorted(cumulative_RV, threshold_R1, right=True).squeeze(-1)
    # Past the end only where the logits are not numbers; the logprob says so, an index out of bounds kills a GPU.
    drawn_R = drawn_R.clamp_max(logits_RV.shape[-1] - 1)
    token_R = torch.where(greedy_R, logits_RV.argmax(-1), drawn_R)
    return token_R, logprob_RV.gather(-1, token_R[:, None]).squeeze(-1)
