"""Means with 95% intervals, the same for the same values."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sleuth.records import Estimate

Z = 1.959963984540054  # the 97.5% point of the normal distribution
DRAWS = 2000
SEED = 0
SHARE = (0.0, 1.0)
_CHUNK = 1 << 22  # places drawn at once, so that a benchmark of 50,000 questions needs no gigabytes

Vector = NDArray[np.float64]
Bounds = tuple[float, float]


def estimate(values: Sequence[float], *, shares: bool = True) -> Estimate:
    """The mean: Wilson's interval where every value is 0 or 1, else a percentile bootstrap's, for few values widened.

    What is counted, such as searches, is no share though it be 0 and 1; its interval ends at nothing.
    """
    array = checked(values)
    if shares and binary(array):
        return _wilson(array)
    bounded = shares and array.min() >= 0.0 and array.max() <= 1.0
    low, high = widest(bootstrap(array), unseen(array, SHARE if bounded else None))
    return Estimate(float(array.mean()), max(0.0, low) if array.min() >= 0.0 else low, high, array.size)


def mean_of_means(groups: Sequence[Sequence[float]], *, shares: bool = True) -> Estimate:
    """The mean of the groups' means; its interval is joined of theirs, so that each adds what it leaves open."""
    return joined([estimate(group, shares=shares) for group in groups])


def joined(means: Sequence[Estimate]) -> Estimate:
    """The mean of independent means: the distances to their limits add up as independent errors do.

    Zou and Donner's way (2008): it keeps the form of each interval, and a group of one question makes the whole wider.
    """
    if len(means) == 1:
        return means[0]
    value = math.fsum(each.value for each in means) / len(means)
    below = math.hypot(*(each.value - each.low for each in means)) / len(means)
    above = math.hypot(*(each.high - each.value for each in means)) / len(means)
    return Estimate(value, value - below, value + above, sum(each.count for each in means))


def checked(values: Sequence[float]) -> Vector:
    """The values as an array: at least one, and all of them numbers."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError("a mean over no values is not a number; expected at least one")
    if not np.isfinite(array).all():
        raise ValueError("a value is not a finite number; leave out what was not measured")
    return array


def binary(array: Vector) -> bool:
    """Whether every value is 0 or 1."""
    return bool(np.isin(array, (0.0, 1.0)).all())


def widest(*intervals: Bounds) -> Bounds:
    """The least interval that holds all of these."""
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def bootstrap(array: Vector) -> Bounds:
    """The middle 95% of the means of samples drawn with replacement."""
    low, high = np.quantile(_draws(array, np.random.default_rng(SEED)), (0.025, 0.975))
    # Sums of one and the same value may miss it by a rounding.
    value = float(array.mean())
    return min(float(low), value), max(float(high), value)


def unseen(array: Vector, bounds: Bounds | None) -> Bounds:
    """How far values that did not come up could move the mean: no draw shows them, yet they may be there.

    The rule of three: what was never seen in n values has at most the share 1 - 0.05^(1/n), and could lie at the
    bounds. A quantity without bounds has no scale but its own: where all values agree, room for minus and for thrice
    their value, and none about zero; where they differ, what was seen has to do.
    """
    value, share = float(array.mean()), 1.0 - 0.05 ** (1.0 / array.size)
    reach = 2.0 * abs(value) if array.min() == array.max() else 0.0
    lowest, highest = bounds or (value - reach, value + reach)
    return value - share * (value - lowest), value + share * (highest - value)


def _wilson(array: Vector) -> Estimate:
    """Wilson's score interval (1927): never empty and never outside 0 and 1, also where all values agree."""
    count, share = array.size, float(array.mean())
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    centre, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return Estimate(share, min(low, share), max(high, share), count)


def _draws(array: Vector, random: np.random.Generator) -> Vector:
    """Means of samples drawn from the values with replacement."""
    _, firsts, counts = np.unique(array, return_index=True, return_counts=True)
    if 4 * firsts.size <= array.size:
        # How often each value comes is all that a mean needs; in the order of the questions, so that differences
        # turned round give the same draws turned round.
        order = np.argsort(firsts)
        often = random.multinomial(array.size, counts[order] / array.size, size=DRAWS)
        drawn: Vector = often @ array[firsts[order]] / array.size
        return drawn
    return np.concatenate([array[places].mean(axis=1) for places in _places(array.size, random)])


def _places(size: int, random: np.random.Generator) -> Iterable[NDArray[np.int64]]:
    rows = max(1, min(DRAWS, _CHUNK // size))
    for start in range(0, DRAWS, rows):
        yield random.integers(size, size=(min(rows, DRAWS - start), size))
