"""Numbers as people read them."""

import pytest

from sleuth.page.number import duration, interval, short
from sleuth.records import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (12345, "12,345"),
        (2.0, "2"),
        (0.123456, "0.1235"),
        (1234.56, "1,234.6"),
        (1e-7, "1e-07"),
        (1e20, "1e+20"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_no_number_is_absent(value: float | None) -> None:
    assert short(value) == duration(value) == "–"


def test_short_leaves_other_things_as_they_print() -> None:
    assert (short(True), short("grpo"), short([1, 2])) == ("True", "grpo", "[1, 2]")


def test_interval() -> None:
    assert interval(Estimate(0.865, 0.8109, 0.9057, 200)) == "0.865 [0.811, 0.906]"
    assert interval(Estimate(0.5, -0.25, 1.0, 9), 2, sign=True) == "+0.50 [-0.25, +1.00]"
    assert interval(None) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.123, "4.1 s"), (59.99, "60.0 s"), (119.6, "2 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
