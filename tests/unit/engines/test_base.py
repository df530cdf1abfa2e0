"""What no engine can do is refused before it is asked."""

from typing import Any

import pytest

from sleuth.engines.base import Sampling, Seat


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 5, "stops": ("a", "")},
        {"max_tokens": 5, "seed": -1},
        {"max_tokens": 5, "temperature": -0.1},
        {"max_tokens": 5, "temperature": float("nan")},
        {"max_tokens": 5, "temperature": float("inf")},
    ],
)
def test_senseless_sampling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Sampling(**wrong)


def test_two_seats_of_one_order_are_two() -> None:
    assert len({Seat(0), Seat(0)}) == 2
