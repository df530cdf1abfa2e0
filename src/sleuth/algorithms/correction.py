"""What a token counts for where the engine that sampled it and the trainer give it different probabilities.

_T sampled tokens, _N trajectories, _U units: the tokens or the trajectories, as the level says. The ratio is
exp(old - rollout), old the trainer's logprob before the step and rollout the engine's: the importance weight that makes
samples of the engine stand for samples of the trainer.
- truncate at the token: TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")
- mask at the trajectory: MIS (Liu et al. 2025, "When speed kills stability"); geometric: by the mean of its log ratios
- mask at the token with both bounds: IcePop (Ring-1T, arXiv 2510.18855)
"""

import math
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from sleuth.algorithms import rows
from sleuth.algorithms.kl import k3
from sleuth.algorithms.ratio import bounded_exp
from sleuth.algorithms.shapes import vectors

Level = Literal["token", "sequence", "geometric"]
Action = Literal["truncate", "mask", "clip"]

# Of equal logprobs: what there is to say of no tokens at all.
NOTHING = {"ratio_mean": 1.0, "ratio_max": 1.0, "k3": 0.0, "ess": 1.0, "dropped": 0.0}


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The weight of each token, 0 where it is dropped, and what to record of the whole."""

    weight_T: Tensor
    metrics: dict[str, float]


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
) -> Correction:
    """Weighs tokens by the ratio of their unit; `veto` drops trajectories with one token of a ratio below it."""
    vectors(old=old_T, rollout=rollout_T, row=row_T)
    _refuse(action, low, high, veto)
    if not len(old_T):
        return Correction(old_T.clone(), dict(NOTHING))
    _, index_T, count_N = rows.numbered(row_T)
    difference_T = old_T - rollout_T
    ratio_U = bounded_exp(_log_ratio(difference_T, index_T, count_N, level))
    weight_U = _weighed(ratio_U, action, low, high)
    if veto is not None:
        vetoed_N = rows.sums((difference_T < math.log(veto)).long(), index_T, count_N) > 0
        weight_U = weight_U.masked_fill(vetoed_N[index_T] if level == "token" else vetoed_N, 0.0)
    weight_T = weight_U if level == "token" else weight_U[index_T]
    metrics = {
        "ratio_mean": float(ratio_U.double().mean()),
        "ratio_max": float(ratio_U.max()),
        "k3": float(k3(rollout_T, old_T).double().mean()),
        "ess": _effective_share(weight_U),
        "dropped": float((weight_T == 0).double().mean()),
    }
    return Correction(weight_T, metrics)


def _effective_share(weight_U: Tensor) -> float:
    """Kish's effective sample size, (sum w)^2 / sum w^2, as a share of the samples; 0 where every weight is 0."""
    squares = float(weight_U.double().square().sum())
    return float(weight_U.double().sum()) ** 2 / (squares * len(weight_U)) if squares else 0.0


def _log_ratio(difference_T: Tensor, index_T: Tensor, count_N: Tensor, level: Level) -> Tensor:
    match level:
        case "token":
            return difference_T
        case "sequence":
            return rows.sums(difference_T, index_T, count_N)
        case "geometric":
            return rows.means(difference_T, index_T, count_N)
        case _:
            assert_never(level)


def _weighed(ratio_U: Tensor, action: Action, low: float | None, high: float) -> Tensor:
    match action:
        case "truncate":
            return ratio_U.clamp(max=high)
        case "mask":
            outside_U = (ratio_U > high) | (ratio_U < (0.0 if low is None else low))
            return ratio_U.masked_fill(outside_U, 0.0)
        case "clip":
            return ratio_U.clamp(low, high)
        case _:
            assert_never(action)


def _refuse(action: Action, low: float | None, high: float, veto: float | None) -> None:
    """Refuses bounds that cannot be meant."""
    if action == "truncate" and low is not None:
        raise ValueError(f"low = {low:g} has no effect with truncate; remove it, or choose clip")
    if not high > (low or 0.0) >= 0:
        raise ValueError(f"the ratio cannot be held between {low or 0.0:g} and {high:g}; give 0 <= low < high")
    if veto is not None and not veto > 0:
        raise ValueError(f"veto = {veto:g} is below every ratio; choose one above 0, such as 1e-4")
