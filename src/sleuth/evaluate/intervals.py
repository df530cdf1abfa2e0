"""Means with 95% intervals, the same for the same values."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sleuth.records import Estimate

Z = 1.959963984540054  # the 97.5% point of the normal distribution
DRAWS = 2000
SEED = 0
_CHUNK = 1 << 22  # places drawn at once, so that a benchmark of 50,000 questions needs no gigabytes

Vector = NDArray[np.float64]
Bounds = tuple[float, float]


def estimate(values: Sequence[float]) -> Estimate:
    """The mean with Wilson's interval where every value is 0 or 1, else with that of a percentile bootstrap."""
    array = _checked(values)
    if np.isin(array, (0.0, 1.0)).all():
        return _wilson(array)
    shares = array.min() >= 0.0 and array.max() <= 1.0
    found = _bootstrap(array, (0.0, 1.0) if shares else None)
    # What is counted, such as searches, is never less than nothing.
    return replace(found, low=max(0.0, found.low)) if array.min() >= 0.0 else found


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """The mean of after minus before over the same questions in the same order, with a bootstrap over the pairs."""
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after; pairs need as many of each")
    first, second = _checked(before), _checked(after)
    shares = min(first.min(), second.min()) >= 0.0 and max(first.max(), second.max()) <= 1.0
    return _bootstrap(second - first, (-1.0, 1.0) if shares else None)


def mean_of_means(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean of the groups' means, each group drawn from apart (a stratified bootstrap); one group is itself."""
    if len(groups) == 1:
        return estimate(groups[0])
    arrays = [_checked(group) for group in groups]
    shares = min(array.min() for array in arrays) >= 0.0 and max(array.max() for array in arrays) <= 1.0
    found = _stratified(arrays, (0.0, 1.0) if shares else None)
    return replace(found, low=max(0.0, found.low)) if min(array.min() for array in arrays) >= 0.0 else found


def paired_mean_of_means(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, shares: bool = True
) -> Estimate:
    """The mean over groups of the mean of after minus before, pairs drawn within each group."""
    if len(before) == 1:
        return paired_difference(before[0], after[0])
    pairs = [_checked(second) - _checked(first) for first, second in zip(before, after, strict=True)]
    return _stratified(pairs, (-1.0, 1.0) if shares else None)


def _stratified(arrays: Sequence[Vector], bounds: Bounds | None) -> Estimate:
    value, count = float(np.mean([array.mean() for array in arrays])), sum(array.size for array in arrays)
    random = np.random.default_rng(SEED)
    if all(array.min() == array.max() for array in arrays):
        # No draw shows anything else: what may lie unseen in each group adds up as independent errors do.
        known = [_unanimous(float(array[0]), array.size, bounds) for array in arrays]
        below = math.sqrt(sum((each.value - each.low) ** 2 for each in known)) / len(known)
        above = math.sqrt(sum((each.high - each.value) ** 2 for each in known)) / len(known)
        return Estimate(value, value - below, value + above, count)
    low, high = np.quantile(np.mean([_draws(array, random) for array in arrays], axis=0), (0.025, 0.975))
    return Estimate(value, float(low), float(high), count)


def _checked(values: Sequence[float]) -> Vector:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError("a mean over no values is not a number; expected at least one")
    if not np.isfinite(array).all():
        raise ValueError("a value is not a finite number; leave out what was not measured")
    return array


def _wilson(array: Vector) -> Estimate:
    """Wilson's score interval (1927): never empty and never outside 0 and 1, also where all values agree."""
    count, share = array.size, float(array.mean())
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    centre, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return Estimate(share, min(low, share), max(high, share), count)


def _bootstrap(array: Vector, bounds: Bounds | None) -> Estimate:
    if array.min() == array.max():
        return _unanimous(float(array[0]), array.size, bounds)
    low, high = np.quantile(_draws(array, np.random.default_rng(SEED)), (0.025, 0.975))
    return Estimate(float(array.mean()), float(low), float(high), array.size)


def _draws(array: Vector, random: np.random.Generator) -> Vector:
    """Means of samples drawn from the values with replacement."""
    rows = max(1, min(DRAWS, _CHUNK // array.size))
    sizes = [rows] * (DRAWS // rows) + [DRAWS % rows]
    means = [array[random.integers(array.size, size=(size, array.size))].mean(axis=1) for size in sizes if size]
    return np.concatenate(means)


def _unanimous(value: float, count: int, bounds: Bounds | None) -> Estimate:
    """All values agree, or there is but one: no draw shows another, yet another may be there.

    The rule of three: values never seen in `count` have at most the share 1 - 0.05^(1/count), and they could lie at the
    bounds; a quantity without bounds is given room for zero and for thrice the value.
    """
    reach = 1.0 + 2.0 * abs(value)
    lowest, highest = bounds or (value - reach, value + reach)
    unseen = 1.0 - 0.05 ** (1.0 / count)
    return Estimate(value, value - unseen * (value - lowest), value + unseen * (highest - value), count)
