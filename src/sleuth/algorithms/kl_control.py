"""The weight of the KL, adapted so that the policy stays at a chosen distance (arXiv 1909.08593)."""

import math

# The proportional error is held within a fifth, so that one odd batch moves the weight little.
ERROR_BOUND = 0.2


def adapted(coefficient: float, measured: float, target: float, horizon: int, samples: int) -> float:
    """The coefficient after `samples` more trajectories whose KL was `measured`: larger where it was above `target`.

    It changes by a fifth at most, and by all of that only where `samples` reaches `horizon`.
    """
    if not (target > 0 and horizon > 0 and samples >= 0 and math.isfinite(measured)):
        raise ValueError(
            f"target {target:g} and horizon {horizon} must be above 0, samples {samples} no less than 0, "
            f"and the measured KL {measured:g} finite"
        )
    error = max(-ERROR_BOUND, min(ERROR_BOUND, measured / target - 1.0))
    return coefficient * (1.0 + error * min(1.0, samples / horizon))
