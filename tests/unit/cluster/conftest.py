"""Rates and scenarios whose results can be computed by hand."""

from dataclasses import replace
from typing import Any

import pytest

from sleuth.cluster.rates import ClusterRates, EpisodeShape, TurnShape
from sleuth.cluster.scenario import Scenario, WorkerLimits

# 0.01 s of prefill, 0.2 s of decode, a search, 0.005 s, 0.3 s; 200 tokens.
EPISODE = EpisodeShape((TurnShape(100, 20, searches=True), TurnShape(50, 30, searches=False)))
RATES = ClusterRates(
    source="hand",
    decode=((1, 100.0), (1000, 100_000.0)),  # a step takes 10 ms, however many sequences
    prefill=10_000.0,
    turn=0.0,
    train=10_000.0,
    score=None,
    step=0.0,
    pack=16_384,
    pack_seconds=0.0,
    weights=0,
    transfer=1e9,
    search=1.0,
    overlap=1.0,
    groups=((EPISODE,),),
)
LIMITS = WorkerLimits(slots=1000, concurrency=1000, searches=None, lockstep=False, keep_cache=False)
SCENARIO = Scenario(
    questions=1,
    samples=1,
    updates=1,
    mode="sync",
    staleness=0,
    trainers=1,
    rollouts=1,
    limits=LIMITS,
    drops_flat_groups=True,
)


class Case:
    """Builds rates and scenarios with changes."""

    def rates(self, **changes: Any) -> ClusterRates:
        return replace(RATES, **changes)

    def scenario(self, limits: dict[str, Any] | None = None, **changes: Any) -> Scenario:
        return replace(SCENARIO, limits=replace(LIMITS, **(limits or {})), **changes)

    def episode(self, *turns: tuple[int, int, bool], reward: float | None = None) -> EpisodeShape:
        return EpisodeShape(tuple(TurnShape(*turn) for turn in turns), reward)


@pytest.fixture
def case() -> Case:
    return Case()
