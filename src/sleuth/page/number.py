"""Numbers as people read them."""

import math

from sleuth.records import Estimate

ABSENT = "–"


def interval(estimate: Estimate | None, decimals: int = 3, sign: bool = False) -> str:
    """`0.865 [0.811, 0.906]`, with a sign in front of each number where it is a difference."""
    if estimate is None or not math.isfinite(estimate.value):
        return ABSENT
    value, low, high = (
        f"{number:{'+' if sign else ''}.{decimals}f}" for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def short(value: object) -> str:
    """A number of any size in a few characters; anything else as it prints."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ABSENT if value is None else str(value)
    if not math.isfinite(value):
        return ABSENT
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """`3 min 20 s`, `2 h 05 min`, `4.1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
