"""Limits of a rollout worker: slots, episodes in flight, searches, lockstep."""

from typing import Any

import pytest

from sleuth.cluster.simulation import predict

ALONE = 0.515 + 1  # seconds of the episode
TRAIN = 2 * 0.02


def seconds(case: Any, limits: dict[str, Any], **rates: Any) -> float:
    """Seconds of the rollouts of a step with two equal episodes."""
    found: float = predict(case.scenario(limits, questions=2), case.rates(**rates)).step_seconds
    return found - TRAIN


def test_two_episodes_run_side_by_side(case: Any) -> None:
    # The second prefill of each turn stops the first episode.
    assert seconds(case, {}) == pytest.approx(ALONE + 0.015)


def test_one_slot_is_free_during_a_search(case: Any) -> None:
    """The second episode decodes its first turn while the first one searches, and its second turn after it."""
    assert seconds(case, {"slots": 1}) == pytest.approx(0.21 + 1 + 0.305 + 0.305)


def test_one_episode_in_flight_at_a_time(case: Any) -> None:
    assert seconds(case, {"concurrency": 1}) == pytest.approx(2 * ALONE)


def test_searches_wait_for_each_other(case: Any) -> None:
    assert seconds(case, {"searches": 1}) == pytest.approx(0.22 + 2 + 0.305)


def test_lockstep_decodes_only_while_nothing_searches(case: Any) -> None:
    """Turns of 20 and 30 steps become 20 and 32: lockstep looks every four steps."""
    short, long = case.episode((0, 20, True), (0, 30, False)), case.episode((0, 60, False))
    rates = {"groups": ((short, long),), "search": 1.0}
    found = {
        lockstep: predict(case.scenario({"lockstep": lockstep}, samples=2), case.rates(**rates)).step_seconds
        for lockstep in (False, True)
    }
    trained = 110 / 10_000
    assert found[False] == pytest.approx(0.2 + 1 + 0.3 + trained)
    assert found[True] == pytest.approx(0.2 + 1 + 0.4 + trained)


def test_lockstep_searches_of_one_step_run_together(case: Any) -> None:
    group = (case.episode((0, 20, True), (0, 20, False)),) * 8
    found = predict(case.scenario({"lockstep": True}, samples=8), case.rates(groups=(group,)))
    assert found.step_seconds == pytest.approx(0.2 + 1 + 0.2 + 8 * 40 / 10_000)


def test_a_group_shares_its_prompt(case: Any) -> None:
    group = (case.episode((1000, 10, False)),) * 4
    found = predict(case.scenario(samples=4), case.rates(groups=(group,)))
    assert found.step_seconds == pytest.approx(0.1 + 3 * 16 / 10_000 + 0.1 + 4040 / 10_000)


def test_turn_seconds_stop_the_worker(case: Any) -> None:
    assert seconds(case, {}, turn=0.5, search=0.0) == pytest.approx(0.515 + 0.015 + 4 * 0.5)
