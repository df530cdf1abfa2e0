"""Differences between two measurements of the same questions, with 95% intervals that few differences do not fool.

A percentile bootstrap alone takes four wins and no loss among 400 questions for proof, since no draw shows a loss.
"""

import math
from collections.abc import Sequence

import numpy as np

from sleuth.evaluate.intervals import Bounds, Vector, Z, binary, bootstrap, checked, joined, unseen, widest
from sleuth.records import Estimate

TAIL = 0.025
_HALVINGS = 60  # a limit is then as exact as a float


def paired_difference(before: Sequence[float], after: Sequence[float], *, shares: bool = True) -> Estimate:
    """The mean of after minus before over the same questions in the same order.

    The interval is that of the paired bootstrap, widened to that of the signs, and for shares to what was not seen:
    Tango's score interval where all is 0 or 1, else the rule of three. Where no count differs it has no width.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after; pairs need as many of each")
    first, second = checked(before), checked(after)
    change = second - first
    shares = shares and min(first.min(), second.min()) >= 0.0 and max(first.max(), second.max()) <= 1.0
    limits = [bootstrap(change), signs(change)]
    if shares:
        whole = binary(first) and binary(second)
        limits.append(_tango_of(change) if whole else unseen(change, (-1.0, 1.0)))
    low, high = widest(*limits)
    return Estimate(float(change.mean()), low, high, change.size)


def paired_mean_of_means(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], *, shares: bool = True
) -> Estimate:
    """The mean over groups of the mean of after minus before, the interval joined of theirs."""
    pairs = zip(before, after, strict=True)
    return joined([paired_difference(first, second, shares=shares) for first, second in pairs])


def signs(change: Vector) -> Bounds:
    """The interval if nothing but signs were uncertain: gains among what differs have Clopper and Pearson's limits.

    For 0 and 1 it excludes zero exactly where McNemar's exact test has p < .05, so never by fewer than six questions.
    Gains and losses have the mean size of those seen; where only one sort was, the other is taken to be of its size.
    """
    gains, losses = change[change > 0], -change[change < 0]
    differing = gains.size + losses.size
    if not differing:
        return 0.0, 0.0
    gain = float((gains if gains.size else losses).mean())
    loss = float((losses if losses.size else gains).mean())
    least = least_share(gains.size, differing)
    most = 1.0 - least_share(losses.size, differing)
    part = differing / change.size
    return part * (least * gain - (1 - least) * loss), part * (most * gain - (1 - most) * loss)


def tango(wins: int, losses: int, count: int) -> Bounds:
    """Tango's score interval (1998) for the difference of two paired shares."""
    return -_highest(losses, wins, count), _highest(wins, losses, count)


def least_share(hits: int, count: int) -> float:
    """Clopper and Pearson's lower limit (1934): the share at which so many hits or more have a chance of 2.5%."""
    if not hits:
        return 0.0
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    seen = np.arange(hits, count + 1)
    ways = factorials[count] - factorials[seen] - factorials[count - seen]
    low, high = 0.0, hits / count
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        chance = np.exp(ways + seen * math.log(share) + (count - seen) * math.log1p(-share)).sum()
        low, high = (share, high) if chance < TAIL else (low, share)
    return low


def _tango_of(change: Vector) -> Bounds:
    return tango(int((change > 0).sum()), int((change < 0).sum()), change.size)


def _highest(wins: int, losses: int, count: int) -> float:
    """The largest difference that a score test at 5% does not reject."""
    low, high = (wins - losses) / count, 1.0
    for _ in range(_HALVINGS):
        difference = (low + high) / 2
        lost = _lost(wins, losses, count, difference)
        spread = math.sqrt(max(0.0, count * (2 * lost + difference * (1 - difference))))
        kept = count * difference - (wins - losses) <= Z * spread
        low, high = (difference, high) if kept else (low, difference)
    return low


def _lost(wins: int, losses: int, count: int, difference: float) -> float:
    """The most likely share of losses if the difference were this one: the root of a quadratic equation."""
    twice = 2 * count
    linear = (twice - wins + losses) * difference - wins - losses
    constant = -losses * difference * (1 - difference)
    return (math.sqrt(max(0.0, linear * linear - 4 * twice * constant)) - linear) / (2 * twice)
