"""Off-policy correction: token weights for differences between the engine's and the trainer's probabilities.

Suffixes: T sampled tokens, N trajectories, U units (tokens or trajectories, by level). The ratio is
exp(old - rollout): old is the trainer's logprob before the step, rollout the engine's. Variants:
- truncate per token: TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")
- mask per trajectory: MIS (Liu et al. 2025, "When speed kills stability"); geometric: by the mean log ratio
- mask per token with both bounds: IcePop (Ring-1T, arXiv 2510.18855)
- any of them together with rejection of units at another level, and with weights normalised to mean 1
"""

import math
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from sleuth.algorithms.kl import k3
from sleuth.algorithms.segments import bounded_exp, index_rows, require_vectors, row_means, row_sums

Level = Literal["token", "sequence", "geometric"]
Action = Literal["truncate", "mask", "clip"]

# Metrics of a step without tokens: the same as for equal logprobs.
NO_TOKENS = {"ratio_mean": 1.0, "ratio_max": 1.0, "k3": 0.0, "ess": 1.0, "dropped": 0.0}


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The weight of each token (0 if dropped) and metrics of the step."""

    weight_T: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rejection of units at `level` whose ratio is outside [low, high]."""

    level: Level
    low: float
    high: float


@torch.no_grad()
def correct(
    old_T: Tensor,
    rollout_T: Tensor,
    row_T: Tensor,
    *,
    level: Level,
    action: Action,
    low: float | None,
    high: float,
    veto: float | None,
    reject: Rejection | None = None,
    normalise: bool = False,
) -> Correction:
    """Weight each token by the ratio of its unit, and drop trajectories with any token ratio below `veto`.

    `normalise` scales the weights to mean 1 over the units of the step, before rejection and veto.
    """
    require_vectors(old=old_T, rollout=rollout_T, row=row_T)
    _check_bounds(action, low, high, veto, reject)
    if not len(old_T):
        return Correction(old_T.clone(), dict(NO_TOKENS))
    _, index_T, count_N = index_rows(row_T)
    difference_T = old_T - rollout_T
    ratio_U = bounded_exp(_log_ratio(difference_T, index_T, count_N, level))
    weight_U = _apply_bounds(ratio_U, action, low, high)
    if normalise and (mean := float(weight_U.double().mean())) > 0:
        weight_U = weight_U / mean
    if veto is not None:
        vetoed_N = row_sums((difference_T < math.log(veto)).long(), index_T, count_N) > 0
        weight_U = weight_U.masked_fill(vetoed_N[index_T] if level == "token" else vetoed_N, 0.0)
    weight_T = weight_U if level == "token" else weight_U[index_T]
    metrics = {
        "ratio_mean": float(ratio_U.double().mean()),
        "ratio_max": float(ratio_U.max()),
        "k3": float(k3(rollout_T, old_T).double().mean()),
        "ess": _effective_sample_fraction(weight_U),
    }
    if reject is not None:
        other_U = bounded_exp(_log_ratio(difference_T, index_T, count_N, reject.level))
        outside_U = (other_U < reject.low) | (other_U > reject.high)
        outside_T = outside_U if reject.level == "token" else outside_U[index_T]
        weight_T = weight_T.masked_fill(outside_T, 0.0)
        metrics["rejected"] = float(outside_T.double().mean())
    return Correction(weight_T, {**metrics, "dropped": float((weight_T == 0).double().mean())})


def _effective_sample_fraction(weight_U: Tensor) -> float:
    """Return Kish's effective sample size, (sum w)^2 / sum w^2, divided by the number of units."""
    squares = float(weight_U.double().square().sum())
    return float(weight_U.double().sum()) ** 2 / (squares * len(weight_U)) if squares else 0.0


def _log_ratio(difference_T: Tensor, index_T: Tensor, count_N: Tensor, level: Level) -> Tensor:
    match level:
        case "token":
            return difference_T
        case "sequence":
            return row_sums(difference_T, index_T, count_N)
        case "geometric":
            return row_means(difference_T, index_T, count_N)
        case _:
            assert_never(level)


def _apply_bounds(ratio_U: Tensor, action: Action, low: float | None, high: float) -> Tensor:
    match action:
        case "truncate":
            return ratio_U.clamp(max=high)
        case "mask":
            outside_U = (ratio_U > high) | (ratio_U < (0.0 if low is None else low))
            return ratio_U.masked_fill(outside_U, 0.0)
        case "clip":
            return ratio_U.clamp(min=low, max=high)
        case _:
            assert_never(action)


def _check_bounds(action: Action, low: float | None, high: float, veto: float | None, reject: Rejection | None) -> None:
    if action == "truncate" and low is not None:
        raise ValueError(f"low = {low:g} has no effect with truncate; remove it, or use clip")
    if not high > (low or 0.0) >= 0:
        raise ValueError(f"the bounds {low or 0.0:g} and {high:g} are not an interval; expected 0 <= low < high")
    if veto is not None and not veto > 0:
        raise ValueError(f"veto = {veto:g} is below every ratio; use one above 0, such as 1e-4")
    if reject is not None and not 0 <= reject.low < reject.high:
        raise ValueError(f"the bounds of {reject} are not an interval; expected 0 <= low < high")
