"""Likelihood penalties: keep updates from making good actions less likely than they were when they were sampled.

Suffixes: T sampled tokens of a pack, U units (actions or trajectories). The old logprob is that of the policy which
sampled the token, and a token's drop is the old logprob minus the new one. The threshold is the ratio to the old
probability below which a token is penalised.
"""

import math
from collections.abc import Callable

from torch import Tensor

from sleuth.algorithms.loss import Sampled
from sleuth.algorithms.segments import index_rows, row_sums

Penalty = Callable[[Sampled, float], Tensor]


def llds(sampled: Sampled, threshold: float) -> Tensor:
    """LLDS (arXiv 2512.04220): the drop of each token that became less likely, in units that did so as a whole.

    `row_T` is the unit of a token. Tokens with a negative advantage count neither in the sum nor in the penalty.
    """
    drop_T = sampled.old_T - sampled.logprob_T
    good_T = sampled.advantage_T >= 0
    _, index_T, count_U = index_rows(sampled.row_T)
    fell_U = row_sums(drop_T.detach() * good_T, index_T, count_U) > 0
    return drop_T.clamp(min=0.0) * (good_T & fell_U[index_T] & _is_below(sampled, threshold))


def sapo(sampled: Sampled, threshold: float) -> Tensor:
    """SAPO (arXiv 2603.10069, eq. 11): the drop of each token with a positive advantage and a ratio below `threshold`.

    With a threshold above 1, tokens that became more likely get a negative penalty, as in the paper's formula.
    """
    return (sampled.old_T - sampled.logprob_T) * ((sampled.advantage_T > 0) & _is_below(sampled, threshold))


PENALTIES: dict[str, Penalty] = {"llds": llds, "sapo": sapo}


def action_keys(row_T: Tensor, turn_T: Tensor) -> Tensor:
    """Return a key of each token's action, which is its turn in its trajectory."""
    return row_T * (turn_T.max() + 1) + turn_T if len(turn_T) else row_T


def _is_below(sampled: Sampled, threshold: float) -> Tensor:
    return sampled.logprob_T.detach() - sampled.old_T < math.log(threshold)
