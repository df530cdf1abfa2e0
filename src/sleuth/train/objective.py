"""Look up and call advantages, policy losses and off-policy corrections by name, validating custom functions.

Suffixes: N trajectories, T sampled tokens of all trajectories of a step or a pack.
"""

from typing import cast

import torch
from torch import Tensor

from sleuth.algorithms import advantage, correction, loss, tree
from sleuth.algorithms.correction import Correction, Level, Rejection
from sleuth.algorithms.loss import Bounds, Sampled, TokenLoss
from sleuth.config.algorithm import LEVELS, AlgorithmConfig, CorrectionConfig
from sleuth.config.hooks import IMPORT, Contract, call, import_function, resolve
from sleuth.errors import FunctionFailed

ADVANTAGE = Contract(("rewards_N", "groups_N"), "a Tensor of shape (N,)")
LOSS = Contract(("sampled", "bounds"), "a TokenLoss")
CORRECTION = Contract(("old_T", "rollout_T", "row_T"), "a Tensor of shape (T,) or a Correction")


def require(algorithm: AlgorithmConfig) -> None:
    """Raise ConfigError if a name is unknown or a function is unusable."""
    names = {"tree_grpo": None, **advantage.ADVANTAGES, "gae": None}
    resolve("algorithm.advantage", algorithm.advantage, names, ADVANTAGE)
    resolve("algorithm.loss", algorithm.loss, loss.LOSSES, LOSS)
    resolve("algorithm.correction.level", algorithm.correction.level, dict.fromkeys(LEVELS), CORRECTION)


def advantages(
    algorithm: AlgorithmConfig, rewards_N: Tensor, groups_N: Tensor, trees_N: Tensor | None = None
) -> Tensor:
    """Compute the advantage of each trajectory; `trees_N` is the number of its tree."""
    name = algorithm.advantage
    if name == "tree_grpo" and trees_N is not None:
        return tree.tree_grpo(rewards_N, groups_N, trees_N)
    function = resolve("algorithm.advantage", name, advantage.ADVANTAGES, ADVANTAGE)
    found_N: Tensor = call(name, function, rewards_N, groups_N)
    _require_vector(name, "", found_N, rewards_N)
    return found_N.detach() if name.startswith(IMPORT) else found_N


def divisor(algorithm: AlgorithmConfig, rewards_N: Tensor, groups_N: Tensor, trees_N: Tensor | None = None) -> Tensor:
    """Return what the advantage of each trajectory is divided by: 1 unless that is a standard deviation."""
    if algorithm.advantage == "tree_grpo" and trees_N is not None:
        return tree.tree_divisor(rewards_N, groups_N, trees_N)
    return advantage.divisor(algorithm.advantage, rewards_N, groups_N)


def policy_loss(algorithm: AlgorithmConfig, sampled: Sampled, bounds: Bounds) -> TokenLoss:
    """Compute the loss of each sampled token, with metrics."""
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


def correct(settings: CorrectionConfig, old_T: Tensor, rollout_T: Tensor, row_T: Tensor) -> Correction:
    """Compute the off-policy weight of each token, with metrics."""
    name = settings.level
    if not name.startswith(IMPORT):
        return correction.correct(
            old_T,
            rollout_T,
            row_T,
            level=cast(Level, name),
            action=settings.action,
            low=settings.low,
            high=settings.high,
            veto=settings.veto,
            reject=settings.reject and Rejection(settings.reject, settings.reject_low, settings.reject_high),
            normalise=settings.normalise,
        )
    found = call(name, import_function(name, CORRECTION), old_T, rollout_T, row_T)
    weight_T, metrics = (found.weight_T, found.metrics) if isinstance(found, Correction) else (found, {})
    _require_vector(name, "", weight_T, old_T)
    if not bool(weight_T.isfinite().all()):
        raise FunctionFailed(f"{name!r} returned weights that are not finite; expected a finite weight per token")
    return Correction(weight_T.detach(), {key: float(value) for key, value in metrics.items()})


def _require_vector(name: str, of: str, found: object, like: Tensor) -> None:
    """Raise FunctionFailed unless the result has the expected shape and a float dtype."""
    kind = type(found).__name__
    if isinstance(found, Tensor):
        if found.shape == like.shape and torch.is_floating_point(found):
            return
        kind = f"a Tensor of {str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
    raise FunctionFailed(f"{name!r} returned {kind}{of}; expected a Tensor of floats of shape {tuple(like.shape)}")
