"""Sampling one token a row, with its logprob: the plain form, for CPUs.

Suffixes: M tokens to sample, R those of them whose choice is truncated, V vocabulary; 4 settings: temperature, top_k,
top_p, min_p (see Sampling).
"""

import numpy as np
import torch
from torch import Tensor

COLDEST = 1e-30  # a temperature below it would divide logits to infinity
BELOW_ONE = float(np.nextafter(1.0, 0.0))
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds_M: np.ndarray, places_M: np.ndarray) -> np.ndarray:
    """A random number for each row, of its seed (uint64) and the place of its token alone: SplitMix64, in [0, 1).

    It is counted, not drawn in turn, so that one call serves the rows of a step, each at its own place.
    """
    with np.errstate(over="ignore"):
        mixed_M = _mixed(_mixed(seeds_M + GOLDEN) + places_M.astype(np.uint64) * GOLDEN)
    uniform_M: np.ndarray = (mixed_M >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform_M


def _mixed(bits_M: np.ndarray) -> np.ndarray:
    bits_M = (bits_M ^ (bits_M >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_M = (bits_M ^ (bits_M >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits_M ^= bits_M >> np.uint64(31)
    return bits_M


def sample(logits_MV: Tensor, settings_M4: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """Token and logprob of each row: what is kept inverted at `uniform_M`, or the best where the temperature is 0."""
    greedy_M = settings_M4[:, 0] == 0
    temperature_M = torch.where(greedy_M, 1.0, settings_M4[:, 0].clamp_min(COLDEST))
    logprob_MV = torch.log_softmax(logits_MV / temperature_M[:, None], dim=-1)
    mass_MV = logprob_MV.double().exp()
    cut_M = _truncates(settings_M4, logits_MV.shape[-1]) & ~greedy_M
    if cut_M.any():
        threshold_R1 = _thresholds(logits_MV[cut_M], mass_MV[cut_M], settings_M4[cut_M])
        mass_MV[cut_M] = mass_MV[cut_M].where(logits_MV[cut_M] >= threshold_R1, 0.0)
    token_M = torch.where(greedy_M, logits_MV.argmax(-1), _invert(mass_MV, uniform_M))
    return token_M, logprob_MV.gather(-1, token_M[:, None]).squeeze(-1)


def _invert(mass_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """The token, in the order of the vocabulary, at which a share `uniform_M` of the mass is passed."""
    cumulative_MV = mass_MV.cumsum(-1)
    # Scaled by the total, which is off 1 by rounding and by what was cut, so that the last token is never passed.
    reached_M1 = uniform_M.double().clamp_max(BELOW_ONE)[:, None] * cumulative_MV[:, -1:]
    drawn_M = torch.searchsorted(cumulative_MV, reached_M1, right=True).squeeze(-1)
    # Past the end only where the logits are not numbers; the logprob says so, an index out of bounds kills a GPU.
    return drawn_M.clamp_max(mass_MV.shape[-1] - 1)


def _truncates(settings_M4: Tensor, vocabulary: int) -> Tensor:
    _, top_k_M, top_p_M, min_p_M = settings_M4.unbind(-1)
    return ((top_k_M > 0) & (top_k_M < vocabulary)) | (top_p_M < 1) | (min_p_M > 0)


def _thresholds(logits_RV: Tensor, mass_RV: Tensor, settings_R4: Tensor) -> Tensor:
    """The lowest logit of each row that may be drawn."""
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
