"""Axes end at round numbers and place values in proportion."""

import pytest

from sleuth.page.axis import axis, drawable


def labels(*values: float, low: float | None = None, high: float | None = None, whole: bool = False) -> list[str]:
    made = axis(values, 0, 100, low=low, high=high, whole=whole)
    return [made.label(tick) for tick in made.ticks()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.1, 1.2), ["0", "0.25", "0.50", "0.75", "1.00", "1.25"]),
        ((-3.0, 4.0), ["-4", "-2", "0", "2", "4"]),
        ((0, 23_000), ["0", "5k", "10k", "15k", "20k", "25k"]),
        ((1200, 1900), ["1,200", "1,400", "1,600", "1,800", "2,000"]),
        ((0, 4e6), ["0", "1M", "2M", "3M", "4M"]),
        ((0, 9e-7), ["0", "2e-07", "4e-07", "6e-07", "8e-07", "1e-06"]),
    ],
)
def test_ticks_are_round(values: tuple[float, ...], expected: list[str]) -> None:
    assert labels(*values) == expected


def test_values_are_placed_in_proportion() -> None:
    made = axis([0.0, 10.0], 50, 250)
    assert [made.place(value) for value in (0, 2.5, 10)] == [50, 100, 250]


def test_an_axis_may_run_upwards_and_holds_what_lies_outside() -> None:
    made = axis([0.0, 1.0], 190, 10)
    assert [made.place(value) for value in (-5, 0.5, 7)] == [190, 100, 10]


@pytest.mark.parametrize("value", [0.0, 3.0, -2.5, 1e-300, 1e50])
def test_a_single_value_has_room_on_both_sides(value: float) -> None:
    made = axis([value], 0, 100)
    assert 0 < made.place(value) < 100
    assert made.ticks()


def test_a_single_zero_on_an_axis_from_zero_lies_at_its_foot() -> None:
    made = axis([0.0], 100, 0, low=0.0)
    assert (made.low, made.place(0.0)) == (0.0, 100)


def test_bounds_asked_for_are_held() -> None:
    made = axis([0.3, 0.4], 0, 100, low=0.0, high=1.0)
    assert (made.low, made.high) == (0.0, 1.0)


def test_whole_ticks() -> None:
    assert labels(1, 3, whole=True) == ["1", "2", "3"]


def test_without_values_it_is_the_unit() -> None:
    made = axis([], 0, 100)
    assert (made.low, made.high) == (0.0, 1.0)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf"), 1e200, "7"])
def test_what_has_no_place(value: object) -> None:
    assert not drawable(value)
