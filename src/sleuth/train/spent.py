"""What episodes took: searches, and how much of what it was given the engine had to compute."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sleuth.agent.tools import Waits
from sleuth.engines.paged.schedule import EngineStats
from sleuth.train.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Spent:
    """The counters of searches and engine at a moment."""

    waits: Waits
    tally: EngineStats

    @classmethod
    def so_far(cls, waits: Waits, tally: Callable[[], EngineStats]) -> "Spent":
        return cls(replace(waits), replace(tally()))

    def since(self, before: "Spent", scoring: float, ranks: Ranks) -> dict[str, float]:
        """What all ranks counted in between, as metrics; episodes of another step, asked meanwhile, are left out.

        `scoring` is how many seconds this rank spent on rewards.
        """
        mine = [scoring, *(after - then for after, then in zip(self._counts(), before._counts(), strict=True))]
        every = [theirs for (theirs,) in ranks.gather([mine], "the counts of searches")]
        reward, searches, seconds, busy, *worked = (sum(column) for column in zip(*every, strict=True))
        return {
            "search/count": float(searches),
            "time/search": busy / ranks.world,
            "time/reward": reward / ranks.world,
            **({"search/latency": seconds / searches} if searches else {}),
            **_worked(*worked),
        }

    def _counts(self) -> tuple[float, ...]:
        waits, tally = self.waits, self.tally
        return (waits.searches, waits.seconds, waits.busy, tally.reused, tally.prefilled, tally.preempted)


def _worked(reused: float, prefilled: float, preempted: float) -> dict[str, float]:
    """The share of given tokens that were not computed again, and rows that gave way; not every engine tells."""
    if not reused + prefilled:
        return {}
    return {"engine/reused": reused / (reused + prefilled), "engine/preempted": float(preempted)}
