"""GSPO (arXiv 2507.18071): the ratio is that of the whole trajectory, the geometric mean over its tokens (eq. 7).

_T sampled tokens, _N trajectories. This is the token form (eq. 13): a token's value is that of its trajectory, and its
gradient goes to its own logprob. Summed over a trajectory whose tokens have one advantage and one weight, value and
gradient are those of the sequence form (eq. 5); where they differ (GAE, corrected tokens) each token keeps its own.
"""

from sleuth.algorithms import rows
from sleuth.algorithms.losses.surrogate import pessimistic
from sleuth.algorithms.losses.tokens import Bounds, Sampled, TokenLoss
from sleuth.algorithms.ratio import bounded_exp


def gspo(sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """The surrogate of each token by the ratio of its trajectory, of which the pack holds every sampled token."""
    if bounds.dual is not None:
        raise ValueError(f"dual = {bounds.dual:g} has no effect in gspo; remove it")
    _, index_T, count_N = rows.numbered(sampled.row_T)
    here_T = sampled.logprob_T.detach()
    log_ratio_T = rows.means(here_T - sampled.old_T, index_T, count_N)[index_T]
    # logprob - here is zero, and brings in the gradient.
    ratio_T = bounded_exp(log_ratio_T + (sampled.logprob_T - here_T))
    return pessimistic(ratio_T, sampled.advantage_T, bounds)
