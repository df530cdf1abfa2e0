"""Sampling parameters are validated."""

from typing import Any

import pytest

from sleuth.engines.base import Sampling, Session


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 5, "stops": ("a", "")},
        {"max_tokens": 5, "stops": ["a"]},
        {"max_tokens": 5, "stops": "</search>"},
        {"max_tokens": 2.5},
        {"max_tokens": 5, "seed": 1.0},
        {"max_tokens": 5, "seed": 2**64},
        {"max_tokens": 5, "seed": -1},
        {"max_tokens": 5, "temperature": -0.1},
        {"max_tokens": 5, "temperature": float("nan")},
        {"max_tokens": 5, "temperature": float("inf")},
        {"max_tokens": 5, "top_k": -1},
        {"max_tokens": 5, "top_p": 0.0},
        {"max_tokens": 5, "top_p": 1.01},
        {"max_tokens": 5, "top_p": float("nan")},
        {"max_tokens": 5, "min_p": -0.1},
        {"max_tokens": 5, "min_p": 1.01},
        {"max_tokens": 5, "min_p": float("nan")},
    ],
)
def test_senseless_sampling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Sampling(**wrong)


@pytest.mark.parametrize(
    "bounds",
    [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 0.0, "top_k": 1, "top_p": 1e-9, "min_p": 1.0}],
)
def test_sampling_at_its_bounds_is_allowed(bounds: dict[str, Any]) -> None:
    sampling = Sampling(max_tokens=1, **bounds)
    assert sampling == Sampling(1, **bounds)


def test_two_sessions_of_one_order_are_two() -> None:
    assert len({Session(0), Session(0)}) == 2
