"""An axis: a stretch of numbers laid on a stretch of the page, with round ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LARGEST = 1e100  # beyond it the arithmetic of ticks overflows, and no curve is worth reading


def drawable(value: object) -> bool:
    """Whether a value has a place on an axis: None, NaN and infinities do not."""
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high` drawn from the coordinate `start` to `end`; `step` lies between two ticks."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The coordinate of a value; values outside the axis are held at its ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """The round numbers on the axis, lowest first."""
        first, last = math.ceil(self.low / self.step - 1e-6), math.floor(self.high / self.step + 1e-6)
        return [number * self.step for number in range(first, last + 1)]

    def label(self, value: float) -> str:
        """A tick as short as its neighbours allow: 0.25, 1,500, 20k, 3e-06."""
        if abs(value) < self.step / 2:
            return "0"
        if self.step < 1e-4 or abs(value) >= 1e9:
            return f"{value:.{_digits(value, self.step)}g}"
        for size, suffix in ((1e6, "M"), (1e3, "k")):
            if self.step >= size and abs(value) >= size:
                return f"{value / size:.6g}{suffix}"
        return f"{value:,.{_decimals(self.step)}f}"


def axis(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    low: float | None = None,
    high: float | None = None,
    whole: bool = False,
    ticks: int = 5,
    rounded: bool = True,
) -> Axis:
    """An axis that holds the values, and `low` and `high` where given; `whole` keeps ticks on integers.

    Without `rounded` it ends at the values, not at the ticks around them.
    """
    held = [*values, *(bound for bound in (low, high) if bound is not None)] or [0.0, 1.0]
    bottom, top = _widened(float(min(held)), float(max(held)), low, high)
    step = _round_step((top - bottom) / ticks)
    if whole:
        step = max(1.0, float(round(step)))
    if rounded:
        bottom, top = math.floor(bottom / step + 1e-6) * step, math.ceil(top / step - 1e-6) * step
    return Axis(bottom, top, step, start, end)


def _widened(bottom: float, top: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Bounds apart enough to divide by; a bound that was asked for stays where it is."""
    size = max(abs(bottom), abs(top))
    if top - bottom > max(size * 1e-9, 1e-90):
        return bottom, top
    room = size / 2 or 0.5
    return (bottom if bottom == low else bottom - room), (top if top == high and bottom != low else top + room)


def _digits(value: float, step: float) -> int:
    """The digits that tell a value from its neighbours a step away, three at least."""
    return max(3, math.floor(math.log10(abs(value) / step) + 1e-9) + 2)


def _decimals(step: float) -> int:
    """The decimals that tell two ticks apart: 2 for 0.25, 1 for 0.5, 0 for 10."""
    return next((digits for digits in range(6) if math.isclose(step, round(step, digits), rel_tol=1e-6)), 6)


def _round_step(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 2.5, 5) if step <= factor * power * (1 + 1e-9)), 10 * power)
