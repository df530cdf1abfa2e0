"""Scenarios from settings: limits of the workers, modes and their staleness."""

import pytest

from sleuth.cluster.scenario import DEFAULT_STALENESS, Mode, choose_mode, describe_scenario
from sleuth.config import recipe
from sleuth.errors import ConfigError


def test_quickstart_on_a_cpu_runs_in_lockstep() -> None:
    found = describe_scenario(recipe.load("quickstart"), "cpu")
    assert (found.questions, found.samples, found.mode, found.workers, found.gpus) == (16, 8, "sync", 1, 1)
    assert (found.limits.lockstep, found.limits.searches, found.drops_flat_groups) == (True, None, True)


def test_search_r1_on_gpus_waits_for_a_server() -> None:
    config = recipe.load("search-r1-grpo-qwen2.5-3b")
    found = describe_scenario(config, "cuda", trainers=4, rollouts=12, mode="async", staleness=3)
    assert (found.limits.slots, found.limits.concurrency, found.limits.searches) == (512, 2048, 64)
    assert (found.limits.lockstep, found.limits.keep_cache, found.drops_flat_groups) == (False, False, False)
    assert (found.workers, found.gpus, found.staleness, found.warmup) == (12, 16, 3, 4)


@pytest.mark.parametrize(
    ("mode", "staleness", "expected"),
    [("sync", None, 0), ("sync", 0, 0), ("ahead", None, 1), ("async", None, DEFAULT_STALENESS), ("async", 5, 5)],
)
def test_staleness_of_modes(mode: Mode, staleness: int | None, expected: int) -> None:
    assert choose_mode(mode, staleness) == (mode, expected)


@pytest.mark.parametrize(("mode", "staleness"), [("sync", 1), ("ahead", 2), ("ahead", 0), ("async", 0)])
def test_contradictions_are_refused(mode: Mode, staleness: int) -> None:
    with pytest.raises(ConfigError, match=f"--staleness {staleness}"):
        choose_mode(mode, staleness)
