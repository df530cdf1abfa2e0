"""Turn-level information gain: rewards for how much each search raises the likelihood of the right answer.

A potential is the likelihood of the best gold answer in a context (IG-Search, arXiv 2604.15148; TIPS, arXiv
2603.22293). Rewards are its differences (Ng et al. 1999, potential-based shaping).

Suffixes: T scored tokens, P probes (an answer in a context), C contexts, K searches of one trajectory.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sleuth.algorithms.segments import index_rows, require_vectors, row_means

Potential = Literal["probability", "logprob"]
Terminal = Literal["zero", "last"]


def potentials(logprob_T: Tensor, probe_T: Tensor, context_P: Tensor, kind: Potential) -> Tensor:
    """Return the potential of each context: the highest mean token logprob of its probes, or exp() of it.

    `probe_T` is the probe of each token and `context_P` the context of each probe, both numbered from 0.
    """
    require_vectors(logprob=logprob_T, probe=probe_T)
    _, index_T, count_P = index_rows(probe_T)
    require_vectors(probes=count_P, contexts=context_P)
    mean_P = row_means(logprob_T, index_T, count_P)
    count = int(context_P.max()) + 1 if len(context_P) else 0
    best_C = mean_P.new_zeros(count).scatter_reduce(0, context_P, mean_P, "amax", include_self=False)
    return best_C.exp() if kind == "probability" else best_C


def turn_gains(potential_C: Tensor, searches: Sequence[int], turns: int, terminal: Terminal) -> Tensor:
    """Return the reward of each turn, given the potentials after the prompt and after each of these search turns.

    With the terminal potential zero, relative to that of the prompt, the last turn returns what the searches earned:
    every trajectory of a question earns the same in total, so no policy gains by searching for its own sake.
    """
    if len(potential_C) != len(searches) + 1 or any(not 0 <= turn < turns for turn in searches):
        raise ValueError(
            f"{len(potential_C)} potentials do not fit searches in the turns {list(searches)} of {turns}; expected one "
            "for the prompt and one per search"
        )
    rewards = potential_C.new_zeros(turns)
    if not len(searches):
        return rewards
    rewards = rewards.index_add(0, torch.tensor(searches, device=rewards.device), potential_C.diff())
    if terminal == "zero":
        rewards[-1] -= potential_C[-1] - potential_C[0]
    return rewards
