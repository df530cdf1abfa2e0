"""Means and paired differences with 95% confidence intervals; deterministic for the same values.

For why some functions do not use scipy, see docs/decisions/0011-statistics.md.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from sleuth.records import Estimate

Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution
TAIL = 0.025
RESAMPLES = 2000
SEED = 0
_CHUNK = 1 << 22  # indices drawn at a time, to bound memory on benchmarks of 50,000 questions
_BISECTIONS = 60  # enough for full float precision

Vector = NDArray[np.float64]
Interval = tuple[float, float]


def estimate(values: Sequence[float], *, proportion: bool = True) -> Estimate:
    """Mean with a Wilson interval for 0/1 values, otherwise with a percentile bootstrap widened for small samples.

    Pass `proportion=False` for counts such as searches, even if every value is 0 or 1.
    """
    array = _as_array(values)
    if proportion and _is_binary(array):  # Wilson's score interval (1927)
        count, share = array.size, float(array.mean())
        spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
        centre, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
        low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
        return Estimate(share, min(low, share), max(high, share), count)
    bounded = proportion and array.min() >= 0.0 and array.max() <= 1.0
    low, high = _union(_bootstrap(array), _rule_of_three(array, (0.0, 1.0) if bounded else None))
    return Estimate(float(array.mean()), max(0.0, low) if array.min() >= 0.0 else low, high, array.size)


def mean_of_means(groups: Sequence[Sequence[float]], *, proportion: bool = True) -> Estimate:
    return combine([estimate(group, proportion=proportion) for group in groups])


def combine(means: Sequence[Estimate]) -> Estimate:
    """Unweighted mean of independent estimates; the interval follows Zou and Donner (2008).

    Distances to the limits add in quadrature, so asymmetric intervals stay asymmetric.
    """
    if len(means) == 1:
        return means[0]
    value = math.fsum(mean.value for mean in means) / len(means)
    below = math.hypot(*(mean.value - mean.low for mean in means)) / len(means)
    above = math.hypot(*(mean.high - mean.value for mean in means)) / len(means)
    return Estimate(value, value - below, value + above, sum(mean.count for mean in means))


def paired_difference(before: Sequence[float], after: Sequence[float], *, proportion: bool = True) -> Estimate:
    """Mean of `after - before` over the same questions in the same order.

    A percentile bootstrap alone is overconfident when few questions differ: no resample contains a loss that was not
    observed. The interval is therefore the union of the bootstrap, the sign interval and, for proportions, Tango's
    score interval (0/1 values) or the rule of three.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after; expected the same number of each")
    first, second = _as_array(before), _as_array(after)
    change = second - first
    intervals = [_bootstrap(change), sign_interval(change)]
    if proportion and min(first.min(), second.min()) >= 0.0 and max(first.max(), second.max()) <= 1.0:
        if _is_binary(first) and _is_binary(second):
            intervals.append(tango_interval(int((change > 0).sum()), int((change < 0).sum()), change.size))
        else:
            intervals.append(_rule_of_three(change, (-1.0, 1.0)))
    low, high = _union(*intervals)
    return Estimate(float(change.mean()), low, high, change.size)


def paired_mean_of_means(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, proportion: bool = True
) -> Estimate:
    pairs = zip(before, after, strict=True)
    return combine([paired_difference(first, second, proportion=proportion) for first, second in pairs])


def sign_interval(change: Vector) -> Interval:
    """Interval of the mean change from Clopper-Pearson limits on the fraction of gains among changed questions.

    For 0/1 values it excludes zero exactly if McNemar's exact test has p < 0.05, so never with fewer than six
    changes. Gains and losses have their observed mean size; if only one occurred, both have its size.
    """
    gains, losses = change[change > 0], -change[change < 0]
    changed = gains.size + losses.size
    if not changed:
        return 0.0, 0.0
    gain = float((gains if gains.size else losses).mean())
    loss = float((losses if losses.size else gains).mean())
    fraction = changed / change.size
    lowest, highest = clopper_pearson_lower(gains.size, changed), 1.0 - clopper_pearson_lower(losses.size, changed)
    low, high = (fraction * (share * gain - (1 - share) * loss) for share in (lowest, highest))
    return low, high


def clopper_pearson_lower(successes: int, trials: int) -> float:
    """Lower limit of the 95% Clopper-Pearson interval (1934)."""
    return float(betaincinv(successes, trials - successes + 1, TAIL)) if successes else 0.0


def tango_interval(wins: int, losses: int, count: int) -> Interval:
    """Tango's score interval (1998) for the difference of two paired proportions."""
    return -_tango_upper(losses, wins, count), _tango_upper(wins, losses, count)


def _tango_upper(wins: int, losses: int, count: int) -> float:
    """Largest difference that a two-sided score test at 5% does not reject."""
    low, high = (wins - losses) / count, 1.0
    for _ in range(_BISECTIONS):
        difference = (low + high) / 2
        # Maximum-likelihood share of losses given this difference: the root of a quadratic equation.
        linear = (2 * count - wins + losses) * difference - wins - losses
        constant = -losses * difference * (1 - difference)
        lost = (math.sqrt(max(0.0, linear * linear - 8 * count * constant)) - linear) / (4 * count)
        deviation = math.sqrt(max(0.0, count * (2 * lost + difference * (1 - difference))))
        accepted = count * difference - (wins - losses) <= Z * deviation
        low, high = (difference, high) if accepted else (low, difference)
    return low


def _rule_of_three(array: Vector, bounds: Interval | None) -> Interval:
    """Interval of the mean widened by the maximum effect of unobserved values.

    A value not seen in n draws has a probability of at most 1 - 0.05^(1/n), and may lie at the bounds. Without
    bounds the scale is unknown: constant values get a margin of twice their size, varying values get none.
    """
    mean, probability = float(array.mean()), 1.0 - 0.05 ** (1.0 / array.size)
    reach = 2.0 * abs(mean) if array.min() == array.max() else 0.0
    lowest, highest = bounds or (mean - reach, mean + reach)
    return mean - probability * (mean - lowest), mean + probability * (highest - mean)


def _bootstrap(array: Vector) -> Interval:
    low, high = np.quantile(_resampled_means(array, np.random.default_rng(SEED)), (0.025, 0.975))
    mean = float(array.mean())  # rounding may move the resampled means of constant values off the mean
    return min(float(low), mean), max(float(high), mean)


def _resampled_means(array: Vector, random: np.random.Generator) -> Vector:
    _, firsts, counts = np.unique(array, return_index=True, return_counts=True)
    if 4 * firsts.size <= array.size:
        # Few distinct values: draw the count of each. Keep the order of the questions, so that swapping the two
        # sides of a difference mirrors the resamples.
        order = np.argsort(firsts)
        occurrences = random.multinomial(array.size, counts[order] / array.size, size=RESAMPLES)
        means: Vector = occurrences @ array[firsts[order]] / array.size
        return means
    rows = max(1, min(RESAMPLES, _CHUNK // array.size))
    sizes = ((min(rows, RESAMPLES - start), array.size) for start in range(0, RESAMPLES, rows))
    return np.concatenate([array[random.integers(array.size, size=size)].mean(axis=1) for size in sizes])


def _as_array(values: Sequence[float]) -> Vector:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError("cannot take the mean of an empty list; expected at least one value")
    if not np.isfinite(array).all():
        raise ValueError("a value is not a finite number; leave out unmeasured questions")
    return array


def _is_binary(array: Vector) -> bool:
    return bool(np.isin(array, (0.0, 1.0)).all())


def _union(*intervals: Interval) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)
