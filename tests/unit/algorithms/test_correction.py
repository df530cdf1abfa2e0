"""Corrections against numbers worked by hand, and against a form of them written trajectory by trajectory.

_T sampled tokens.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from sleuth.algorithms.correction import Action, Correction, Level, Rejection, correct

# Ratios of two trajectories, interleaved on purpose; products 0.5 * 4 * 1 = 2 and 0.1 * 3 = 0.3.
RATIOS = [0.5, 0.1, 4.0, 1.0, 3.0]
ROW_T = torch.tensor([4, 2, 4, 4, 2])
ROLLOUT_T = torch.tensor([-1.0, -0.2, -3.0, -0.5, -2.0], dtype=torch.float64)
OLD_T = ROLLOUT_T + torch.tensor(RATIOS, dtype=torch.float64).log()
CUBE, SQUARE = 2 ** (1 / 3), 0.3**0.5

LEVELS: list[Level] = ["token", "sequence", "geometric"]
ACTIONS: list[tuple[Action, float | None]] = [("truncate", None), ("mask", None), ("mask", 0.4), ("clip", 0.4)]


def corrected(level: Level, action: Action, low: float | None, high: float, veto: float | None = None) -> Correction:
    return correct(OLD_T, ROLLOUT_T, ROW_T, level=level, action=action, low=low, high=high, veto=veto)


@pytest.mark.parametrize(
    ("level", "action", "low", "high", "expected"),
    [
        ("token", "truncate", None, 2.0, [0.5, 0.1, 2.0, 1.0, 2.0]),  # TIS
        ("token", "mask", 0.4, 3.5, [0.5, 0.0, 0.0, 1.0, 3.0]),  # IcePop
        ("token", "mask", None, 3.5, [0.5, 0.1, 0.0, 1.0, 3.0]),
        ("token", "clip", 0.4, 2.0, [0.5, 0.4, 2.0, 1.0, 2.0]),
        ("sequence", "truncate", None, 1.5, [1.5, 0.3, 1.5, 1.5, 0.3]),
        ("sequence", "mask", 0.4, 2.5, [2.0, 0.0, 2.0, 2.0, 0.0]),  # MIS
        ("sequence", "clip", 0.4, 1.5, [1.5, 0.4, 1.5, 1.5, 0.4]),
        ("geometric", "truncate", None, 1.0, [1.0, SQUARE, 1.0, 1.0, SQUARE]),
        ("geometric", "mask", 0.6, 2.0, [CUBE, 0.0, CUBE, CUBE, 0.0]),
        ("geometric", "clip", 0.6, 1.2, [1.2, 0.6, 1.2, 1.2, 0.6]),
    ],
)
def test_weights_by_hand(level: Level, action: Action, low: float | None, high: float, expected: list[float]) -> None:
    assert_close(corrected(level, action, low, high).weight_T, torch.tensor(expected, dtype=torch.float64))


def test_metrics_by_hand() -> None:
    # token: mean (0.5 + 0.1 + 4 + 1 + 3) / 5 = 1.72; k3: mean of r - 1 - ln r;
    # weights 0.5, 0, 0, 1, 3: ess = 4.5^2 / (0.25 + 1 + 9) / 5
    expected = {
        "ratio_mean": 1.72,
        "ratio_max": 4.0,
        "k3": sum(ratio - 1 - math.log(ratio) for ratio in RATIOS) / 5,
        "ess": 20.25 / 10.25 / 5,
        "dropped": 0.4,
    }
    assert corrected("token", "mask", 0.4, 3.5).metrics == pytest.approx(expected)
    # sequence: two units, of 2 and 0.3; the second, of two tokens, is dropped; k3 is of tokens at every level
    expected |= {"ratio_mean": 1.15, "ratio_max": 2.0, "ess": 0.5}
    assert corrected("sequence", "mask", 0.4, 2.5).metrics == pytest.approx(expected)
    # 1.5 and 0.3: 1.8^2 / (2.25 + 0.09) / 2
    assert corrected("sequence", "truncate", None, 1.5).metrics["ess"] == pytest.approx(3.24 / 2.34 / 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("action", "low"), ACTIONS)
def test_veto_drops_the_whole_trajectory_and_no_other(level: Level, action: Action, low: float | None) -> None:
    free = corrected(level, action, low, 100.0)
    vetoed = corrected(level, action, low, 100.0, veto=0.2)
    expected_T = torch.where(ROW_T == 2, 0.0, free.weight_T)
    assert_close(vetoed.weight_T, expected_T)
    assert vetoed.metrics["dropped"] == 0.4
    assert corrected(level, action, low, 100.0, veto=0.05).weight_T.tolist() == free.weight_T.tolist()


def test_veto_below_the_bound_of_ratios_still_works() -> None:
    old_T = torch.tensor([-60.0, -1.0])
    made = correct(
        old_T,
        torch.tensor([-1.0, -1.0]),
        torch.tensor([0, 0]),
        level="token",
        action="clip",
        low=0.5,
        high=2.0,
        veto=1e-20,
    )
    assert made.weight_T.tolist() == [0.0, 0.0]
    assert made.metrics["ess"] == 0.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("action", "low"), ACTIONS)
@pytest.mark.parametrize("veto", [None, 0.3])
def test_the_form_written_by_trajectory(level: Level, action: Action, low: float | None, veto: float | None) -> None:
    dice = torch.Generator().manual_seed(3)
    row_T = torch.randint(0, 9, (60,), generator=dice)
    rollout_T, difference_T = torch.randn(2, 60, generator=dice, dtype=torch.float64) * 0.5
    old_T = rollout_T + difference_T
    made = correct(old_T, rollout_T, row_T, level=level, action=action, low=low, high=1.7, veto=veto)
    assert_close(made.weight_T, naive(difference_T, row_T, level, action, low or 0.0, 1.7, veto or 0.0))


def naive(
    difference_T: Tensor, row_T: Tensor, level: Level, action: Action, low: float, high: float, veto: float
) -> Tensor:
    weight_T = torch.zeros_like(difference_T)
    for row in set(row_T.tolist()):
        places = [place for place, each in enumerate(row_T.tolist()) if each == row]
        ratios = [math.exp(difference_T[place].item()) for place in places]
        units = {
            "token": ratios,
            "sequence": [math.prod(ratios)],
            "geometric": [math.prod(ratios) ** (1 / len(ratios))],
        }
        for place, ratio in zip(places, units[level] * (1 if level == "token" else len(places)), strict=True):
            held = {"truncate": min(ratio, high), "mask": ratio if low <= ratio <= high else 0.0}
            weight_T[place] = held.get(action, max(low, min(high, ratio))) if min(ratios) >= veto else 0.0
    return weight_T


@pytest.mark.parametrize("level", LEVELS)
def test_logprobs_far_apart_stay_finite(level: Level) -> None:
    old_T, rollout_T = torch.tensor([-800.0, 0.0, -1.0]), torch.tensor([0.0, -800.0, -1.0])
    made = correct(
        old_T, rollout_T, torch.tensor([0, 1, 2]), level=level, action="mask", low=None, high=math.inf, veto=None
    )
    assert made.weight_T.isfinite().all()
    assert all(math.isfinite(value) for value in made.metrics.values())
    assert 0.0 <= made.metrics["ess"] <= 1.0


def test_no_gradient_goes_through_a_weight() -> None:
    made = correct(
        OLD_T.clone().requires_grad_(),
        ROLLOUT_T,
        ROW_T,
        level="token",
        action="truncate",
        low=None,
        high=2.0,
        veto=None,
    )
    assert not made.weight_T.requires_grad


@pytest.mark.parametrize("level", LEVELS)
def test_no_tokens(level: Level) -> None:
    none_T = torch.zeros(0)
    made = correct(none_T, none_T, none_T.long(), level=level, action="mask", low=0.5, high=2.0, veto=1e-4)
    assert made.weight_T.tolist() == []
    assert made.metrics == {"ratio_mean": 1.0, "ratio_max": 1.0, "k3": 0.0, "ess": 1.0, "dropped": 0.0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"action": "truncate", "low": 0.5}, "low = 0.5 has no effect with truncate"),
        ({"low": 2.0}, "bounds 2 and 2"),
        ({"low": -0.5}, "bounds -0.5 and 2"),
        ({"high": 0.0}, "bounds 0 and 0"),
        ({"veto": 0.0}, "veto = 0 is below every ratio"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(wrong: dict[str, Any], message: str) -> None:
    settings = {"level": "token", "action": "mask", "low": None, "high": 2.0, "veto": None} | wrong
    with pytest.raises(ValueError, match=message):
        correct(OLD_T, ROLLOUT_T, ROW_T, **settings)


@pytest.mark.parametrize("wrong_T", [torch.zeros(1), torch.zeros(5, 1), torch.tensor(0.0)])
def test_vectors_of_two_lengths_are_refused(wrong_T: Tensor) -> None:
    for given in ((wrong_T, ROLLOUT_T, ROW_T), (OLD_T, wrong_T, ROW_T), (OLD_T, ROLLOUT_T, wrong_T)):
        with pytest.raises(ValueError, match="vectors"):
            correct(*given, level="token", action="truncate", low=None, high=2.0, veto=None)


def test_rejection_drops_trajectories_beside_truncated_token_weights() -> None:
    reject = Rejection("sequence", low=0.5, high=3.0)  # of the products 2 and 0.3
    found = correct(
        OLD_T, ROLLOUT_T, ROW_T, level="token", action="truncate", low=None, high=2.0, veto=None, reject=reject
    )
    assert_close(found.weight_T, torch.tensor([0.5, 0.0, 2.0, 1.0, 0.0], dtype=torch.float64))
    assert found.metrics["rejected"] == pytest.approx(0.4)
    assert found.metrics["dropped"] == pytest.approx(0.4)


def test_rejection_of_tokens_keeps_the_rest_of_their_trajectory() -> None:
    reject = Rejection("token", low=0.4, high=3.5)
    found = correct(
        OLD_T, ROLLOUT_T, ROW_T, level="sequence", action="truncate", low=None, high=5.0, veto=None, reject=reject
    )
    assert_close(found.weight_T, torch.tensor([2.0, 0.0, 0.0, 2.0, 0.3], dtype=torch.float64))


@pytest.mark.parametrize(("level", "mean"), [("token", 5.6 / 5), ("sequence", 1.15)])
def test_normalised_weights_have_mean_one_over_their_units(level: Level, mean: float) -> None:
    plain = corrected(level, "truncate", None, 2.0)
    found = correct(
        OLD_T, ROLLOUT_T, ROW_T, level=level, action="truncate", low=None, high=2.0, veto=None, normalise=True
    )
    assert_close(found.weight_T, plain.weight_T / mean)


@pytest.mark.parametrize("bounds", [(2.0, 2.0), (-1.0, 2.0), (3.0, 2.0)])
def test_rejection_bounds_must_be_an_interval(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="0 <= low < high"):
        correct(
            OLD_T,
            ROLLOUT_T,
            ROW_T,
            level="token",
            action="truncate",
            low=None,
            high=2.0,
            veto=None,
            reject=Rejection("sequence", *bounds),
        )
