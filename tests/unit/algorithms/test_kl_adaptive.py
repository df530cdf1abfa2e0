"""The controller of the KL's weight against numbers worked by hand."""

import math

import pytest

from sleuth.algorithms.kl import adapt_coefficient


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 0.25)),  # a tenth above
        (5.4, 0.1 * (1 - 0.1 * 0.25)),
        (60.0, 0.1 * (1 + 0.2 * 0.25)),  # held at a fifth
        (-9.0, 0.1 * (1 - 0.2 * 0.25)),  # k1 may be negative
    ],
)
def test_by_hand(measured: float, expected: float) -> None:
    assert adapt_coefficient(0.1, measured, target=6.0, horizon=1000, samples=250) == pytest.approx(expected)


def test_more_samples_than_the_horizon_move_it_by_a_fifth_at_most() -> None:
    # unheld it would be 1 - 0.2 * 10, a reward for leaving the reference
    assert adapt_coefficient(0.1, 0.0, target=6.0, horizon=1000, samples=10_000) == pytest.approx(0.08)


def test_the_distance_is_brought_to_the_target() -> None:
    coefficient, distance = 0.01, 0.0
    for _ in range(400):
        distance = 1.0 / (1.0 + 100.0 * coefficient)  # falls as the weight grows
        coefficient = adapt_coefficient(coefficient, distance, target=0.2, horizon=512, samples=256)
    assert distance == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize(
    "given",
    [
        {"target": 0.0},
        {"horizon": 0},
        {"samples": -1},
        {"measured": math.nan},
        {"measured": math.inf},
    ],
)
def test_what_cannot_be_controlled_is_refused(given: dict[str, float]) -> None:
    settings = {"measured": 1.0, "target": 1.0, "horizon": 10, "samples": 1} | given
    with pytest.raises(ValueError, match="must be above 0"):
        adapt_coefficient(
            0.1, settings["measured"], settings["target"], int(settings["horizon"]), int(settings["samples"])
        )
