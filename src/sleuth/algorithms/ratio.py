"""How much likelier a token is now than when it was sampled.

_T sampled tokens.
"""

from torch import Tensor

# exp(20) is finite in every float type trained in, and far outside any clip range.
LOG_RATIO_BOUND = 20.0


def ratio(logprob_T: Tensor, old_T: Tensor) -> Tensor:
    """exp(logprob - old), finite however far apart the two are."""
    return bounded_exp(logprob_T - old_T)


def bounded_exp(log_ratio_T: Tensor) -> Tensor:
    """The ratio of a log ratio, which is held within bounds first."""
    return log_ratio_T.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
