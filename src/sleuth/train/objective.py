"""The advantage and the policy loss that the settings name; what a user's own function returns is checked.

Suffixes: N trajectories, T sampled tokens of all trajectories of a pack.
"""

import torch
from torch import Tensor

from sleuth.algorithms import advantage, loss
from sleuth.algorithms.loss import Bounds, Sampled, TokenLoss
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.config.hooks import IMPORT, Contract, call, resolve
from sleuth.errors import FunctionFailed

ADVANTAGE = Contract(("rewards_N", "groups_N"), "a Tensor of shape (N,)")
LOSS = Contract(("sampled", "bounds"), "a TokenLoss")


def require(algorithm: AlgorithmConfig) -> None:
    """Refuses names and functions that cannot be used, before the first episode."""
    resolve("algorithm.advantage", algorithm.advantage, {**advantage.ADVANTAGES, "gae": None}, ADVANTAGE)
    resolve("algorithm.loss", algorithm.loss, loss.LOSSES, LOSS)


def advantages(algorithm: AlgorithmConfig, rewards_N: Tensor, groups_N: Tensor) -> Tensor:
    """The advantage of each trajectory."""
    name = algorithm.advantage
    function = resolve("algorithm.advantage", name, advantage.ADVANTAGES, ADVANTAGE)
    found_N: Tensor = call(name, function, rewards_N, groups_N)
    _require_vector(name, "", found_N, rewards_N)
    return found_N.detach() if name.startswith(IMPORT) else found_N


def policy_loss(algorithm: AlgorithmConfig, sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """The loss of each sampled token, and what to record of it."""
    name = algorithm.loss
    found: TokenLoss = call(name, resolve("algorithm.loss", name, loss.LOSSES, LOSS), sampled, bounds)
    if not name.startswith(IMPORT):
        return found
    if not isinstance(found, TokenLoss) or not isinstance(found.metrics, dict):
        raise FunctionFailed(f"{name!r} returned {type(found).__name__}; expected {LOSS.returns}")
    _require_vector(name, " as value_T", found.value_T, sampled.logprob_T)
    for metric, value in found.metrics.items():
        _require_vector(name, f" as the metric {metric!r}", value, sampled.logprob_T)
    if sampled.logprob_T.requires_grad and not found.value_T.requires_grad:
        raise FunctionFailed(
            f"{name!r} returned a value_T without gradient; expected one computed from sampled.logprob_T"
        )
    return found


def _require_vector(name: str, of: str, found: object, like: Tensor) -> None:
    """Refuses what would be broadcast, or is no number a place."""
    expected = f"expected a Tensor of floats of shape {tuple(like.shape)}"
    if not isinstance(found, Tensor):
        raise FunctionFailed(f"{name!r} returned {type(found).__name__}{of}; {expected}")
    if found.shape != like.shape or not torch.is_floating_point(found):
        raise FunctionFailed(
            f"{name!r} returned a Tensor of {str(found.dtype).removeprefix('torch.')} of shape "
            f"{tuple(found.shape)}{of}; {expected}"
        )
