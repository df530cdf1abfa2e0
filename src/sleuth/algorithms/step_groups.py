"""Step groups (GiGPO, arXiv 2505.10978): compare the returns of turns that start in the same state.

Suffix: M turns of all trajectories.
"""

import torch
from torch import Tensor

from sleuth.algorithms.advantage import Advantage
from sleuth.algorithms.segments import index_rows, require_vectors


def step_advantages(returns_M: Tensor, states_M: Tensor, estimator: Advantage) -> Tensor:
    """Return the advantage of each turn's reward-to-go within its state (section 3.3); zero for a state of one turn."""
    require_vectors(returns=returns_M, states=states_M)
    _, index_M, count_G = index_rows(states_M)
    several_M = (count_G >= 2)[index_M]
    advantages_M = torch.zeros_like(returns_M)
    advantages_M[several_M] = estimator(returns_M[several_M], states_M[several_M])
    return advantages_M
