"""What the guards of a run see, what they do about it, and with which words a run ends."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isnan, nan
from typing import Any

import pytest

from sleuth.config.guards import WATCHED, GuardsConfig
from sleuth.engines.base import NOT_FINITE
from sleuth.errors import EngineFailure, TrainingStopped
from sleuth.records import StopReason, Trajectory
from sleuth.train import guards
from sleuth.train.guards import (
    GUARDS,
    MIN_HISTORY,
    Crossing,
    Guards,
    NotFinite,
    Verdict,
    above_limit,
    above_lowest,
    above_median,
    below_best_mean,
    below_first,
    last_good,
    most_severe,
    resolve,
)
from sleuth.train.metrics import finite_only, stop_metrics

Maker = Callable[..., Trajectory]
HEALTHY = {
    "policy/gradient_norm": 0.2,
    "policy/entropy": 0.5,
    "policy/likelihood_right": -0.2,
    "episode/malformed": 0.1,
    "episode/answerless": 0.1,
    "stop/search_unavailable": 0.0,
    "stop/engine_failed": 0.0,
    "episode/unusable": 0.0,
    "correction/k3": 0.001,
}
# One step of trouble for each guard, after a healthy past.
TROUBLE = {
    "entropy": {"policy/entropy": 0.001},
    "likelihood": {"policy/likelihood_right": -9.0},
    "malformed": {"episode/malformed": 0.8},
    "answerless": {"episode/answerless": 0.8},
    "search_failures": {"stop/search_unavailable": 0.1},
    "engine_failures": {"stop/engine_failed": 0.1},
    "function_failures": {"stop/function_failed": 0.1},
    "unusable": {"episode/unusable": 0.3},
    "parity": {"correction/k3": 0.2},
}


def settings(**knobs: Any) -> GuardsConfig:
    return GuardsConfig(**knobs)


def past(steps: int = 8) -> list[Mapping[str, float]]:
    return [HEALTHY] * steps


def test_every_knob_has_its_sign_and_every_sign_its_knobs() -> None:
    assert tuple(GUARDS) == WATCHED
    assert set(TROUBLE) | {"gradient_norm"} == set(GUARDS)


def test_a_healthy_step_passes() -> None:
    guard = Guards(settings(), past())
    assert guard.check(HEALTHY) == []
    assert guard.check_update(0.3, 1.0) is None


@pytest.mark.parametrize(("name", "change"), TROUBLE.items())
def test_each_guard_speaks_of_its_own_trouble_and_no_other(name: str, change: Mapping[str, float]) -> None:
    (verdict,) = Guards(settings(), past()).check({**HEALTHY, **change})
    assert (verdict.guard, verdict.action) == (name, settings().actions[name])


@pytest.mark.parametrize(("name", "change"), TROUBLE.items())
def test_a_guard_that_is_off_is_silent(name: str, change: Mapping[str, float]) -> None:
    assert Guards(settings(**{f"{name}_action": "off"}), past()).check({**HEALTHY, **change}) == []


def test_only_metrics_that_are_there_are_judged() -> None:
    assert Guards(settings(), past()).check({}) == []
    (verdict,) = Guards(settings(), past()).check({"parity/k3": 0.5})
    assert verdict.guard == "parity"


def test_a_spike_is_met_before_the_update() -> None:
    guard = Guards(settings(gradient_norm=10.0), past())
    verdict = guard.check_update(2.5)
    assert verdict is not None
    assert (verdict.guard, verdict.action, verdict.value, verdict.limit) == ("gradient_norm", "skip", 2.5, 2.0)
    assert not verdict.applies_update
    assert verdict.line(7) == (
        "step 7: the gradient norm is 2.5, above 2 (10 times its median); this step's update is not applied"
    )
    assert guard.check({**HEALTHY, "policy/gradient_norm": 2.5}) == []


@pytest.mark.parametrize("value", [nan, inf])
def test_what_is_no_number_is_met_before_and_after_the_update(value: float) -> None:
    guard = Guards(settings(), past())
    for verdict in (
        guard.check_update(value),
        guard.check_update(0.2, value),
        *guard.check({"policy/surprise": value}),
    ):
        assert verdict is not None
        assert (verdict.guard, verdict.action) == ("non_finite", "rollback")
        assert verdict.event()["value"] is None
        assert isnan(verdict.limit)
    assert guard.check({"policy/surprise": value})[0].sentence == f"policy/surprise is {value}"
    assert finite_only({"policy/surprise": value, "reward/mean": 0.5}) == {"reward/mean": 0.5}


@pytest.mark.parametrize(("action", "passes"), [("warn", True), ("skip", False), ("rollback", False), ("stop", False)])
def test_the_gate_says_yes_or_no_and_keeps_the_verdict(action: str, passes: bool) -> None:
    said: list[Verdict] = []
    gate = Guards(settings(gradient_norm_action=action), past()).update_gate(said)
    assert gate(0.2)
    assert gate(100.0) is passes
    assert [verdict.action for verdict in said] == [action]


def test_rollbacks_lower_the_rate_until_they_are_used_up() -> None:
    config = settings(rollbacks=2, rollback_rate=0.1)
    watches = [Guards(config, past(), rollbacks=made) for made in range(3)]
    assert [guard.rate_scale for guard in watches] == pytest.approx([1.0, 0.1, 0.01])
    found = [guard.check(TROUBLE["answerless"])[0] for guard in watches]
    assert [verdict.action for verdict in found] == ["rollback", "rollback", "stop"]
    with pytest.raises(TrainingStopped, match=r"80% of the episodes have no answer, above 60% .*guards.rollbacks = 2"):
        guards.stop(found[-1])


def test_a_resumed_run_is_judged_as_one_never_interrupted() -> None:
    rows = [{**HEALTHY, "policy/gradient_norm": 0.1 * step, "step": step} for step in range(1, 30)]
    whole = Guards(settings())
    for row in rows:
        whole.record(row)
    resumed = Guards(settings(), rows)
    for change in TROUBLE.values():
        assert resumed.check(change) == whole.check(change) != []
    assert resumed.check_update(50.0) == whole.check_update(50.0) is not None


def test_judging_changes_nothing() -> None:
    guard = Guards(settings(), past(4))
    first = guard.check(TROUBLE["answerless"])
    assert guard.check(TROUBLE["answerless"]) == first
    guard.record({"episode/answerless": 0.0})
    assert guard.check({"episode/answerless": 0.55})[0].limit == 0.5


@pytest.mark.parametrize(
    ("saved", "step", "stale", "found"),
    [((2, 4, 6), 7, 0, 4), ((2, 4, 6), 8, 0, 6), ((2, 4, 6), 8, 1, 4), ((), 3, 0, 0), ((2,), 3, 0, 0)],
)
def test_a_checkpoint_is_good_once_a_step_was_sampled_from_it(
    saved: tuple[int, ...], step: int, stale: int, found: int
) -> None:
    assert last_good(saved, step, stale) == found


def test_the_gravest_verdict_is_carried_out() -> None:
    made = [Verdict(action, action, 1.0, 0.0, "") for action in ("skip", "warn", "rollback", "skip")]
    assert most_severe(made) == made[2]
    assert most_severe([made[1], made[0], made[3]]) is made[0]
    assert most_severe([]) is None


def test_a_step_is_rolled_back_once_whatever_speaks_for_it() -> None:
    guard = Guards(settings(), past())
    said: list[Verdict] = []
    gate = guard.update_gate(said)
    assert not gate(nan)
    assert not gate(nan)
    said += guard.check({**TROUBLE["answerless"], **TROUBLE["malformed"], **TROUBLE["parity"], "policy/loss": nan})
    assert [verdict.action for verdict in said].count("rollback") == 5
    carried = {verdict.guard: verdict.action for verdict in resolve(said)}
    assert list(carried.values()).count("rollback") == 1
    assert carried.keys() == {"non_finite", "answerless", "malformed", "parity"}


def test_a_stop_leaves_no_rollback_beside_it() -> None:
    said = Guards(settings(malformed_action="stop"), past()).check({**TROUBLE["malformed"], **TROUBLE["answerless"]})
    assert {verdict.guard: verdict.action for verdict in resolve(said)} == {"malformed": "stop", "answerless": "warn"}


LOST = {"search_failures": StopReason.SEARCH_UNAVAILABLE, "engine_failures": StopReason.ENGINE_FAILED}


@pytest.mark.parametrize(("name", "reason"), LOST.items())
def test_lost_episodes_end_an_evaluation_only_above_the_limit(name: str, reason: StopReason, trajectory: Maker) -> None:
    step = [trajectory(stop=reason), *[trajectory()] * 3]
    guards.check_evaluation(step, settings(**{name: 0.25}))
    with pytest.raises(TrainingStopped, match=r"25% of the episodes were lost to .*, more than 24%"):
        guards.check_evaluation(step, settings(**{name: 0.24}))
    guards.check_evaluation(step, settings(**{name: 0.24, f"{name}_action": "warn"}))
    with pytest.raises(TrainingStopped, match="lost to failures of any kind, more than 20%"):
        guards.check_evaluation(step, settings(**{name: 0.24, f"{name}_action": "warn"}, unusable=0.2))


def test_every_reason_that_loses_an_episode_has_a_guard_of_its_own() -> None:
    watched = {metric for sign in GUARDS.values() if sign.lost for metric in sign.metrics}
    assert watched == {f"stop/{reason.value}" for reason in StopReason if not reason.usable} | {"episode/unusable"}


def test_the_example_of_a_failure_is_one_of_the_reason_spoken_of(trajectory: Maker) -> None:
    lost = [
        replace(trajectory(stop=StopReason.OUT_OF_TOKENS), failure="the agent crashed, but its tokens are usable"),
        replace(trajectory(stop=StopReason.SEARCH_UNAVAILABLE), failure="no answer"),
        replace(trajectory(stop=StopReason.ENGINE_FAILED), failure="out of pages"),
        trajectory(),
    ]
    said = Guards(settings()).check(stop_metrics(lost), guards.failure_examples(lost))
    assert {each.guard: each.sentence.rpartition(": ")[2] for each in said} == {
        "search_failures": "no answer",
        "engine_failures": "out of pages",
        "unusable": "no answer",
    }


@pytest.mark.parametrize("stop", [StopReason.ENGINE_FAILED, StopReason.SEARCH_UNAVAILABLE])
def test_nothing_to_learn_from_ends_the_run(stop: StopReason, trajectory: Maker) -> None:
    with pytest.raises(TrainingStopped, match=rf"no episode was usable \(2 {stop.value}\)"):
        guards.check_evaluation([trajectory(stop=stop)] * 2, settings())


def test_the_cause_of_a_failure_is_told(trajectory: Maker) -> None:
    lost = replace(trajectory(stop=StopReason.SEARCH_UNAVAILABLE), failure="no answer for the query 'x': refused")
    with pytest.raises(TrainingStopped, match=r"for example: no answer for the query 'x': refused; repair the search"):
        guards.check_evaluation([trajectory(), lost], settings(search_failures=0.1))
    with pytest.raises(TrainingStopped, match=r"no episode was usable .*refused; fix the cause, then resume the run$"):
        guards.require_usable([lost])


def test_a_broken_engine_ends_the_run_with_its_reason() -> None:
    with pytest.raises(TrainingStopped, match=r"out of pages; fix the cause, then resume the run$"):
        guards.stop_for_engine(EngineFailure("out of pages"))


def test_only_numbers_that_are_not_finite_are_put_down_to_the_learning_rate(trajectory: Maker) -> None:
    lost = replace(trajectory(stop=StopReason.ENGINE_FAILED), failure=NOT_FINITE)
    with pytest.raises(NotFinite, match=r"1 of 2 episodes .* are not finite; .*lower train.learning_rate$"):
        guards.require_usable([trajectory(), lost])
    with pytest.raises(NotFinite, match=r"are not finite; .*lower train.learning_rate$"):
        guards.stop_for_engine(EngineFailure(NOT_FINITE))


def test_a_spike_is_held_against_the_median_of_the_window() -> None:
    past = [100.0, 100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert above_median(past, 31.0, 10.0, 5) == Crossing(31.0, 30.0)
    assert above_median(past, 30.0, 10.0, 5) is None
    assert above_median(past, 31.0, 10.0, 8) is None


@pytest.mark.parametrize("past", [[], [1.0] * (MIN_HISTORY - 1), [0.0] * MIN_HISTORY])
def test_a_spike_needs_a_usual_size(past: list[float]) -> None:
    assert above_median(past, 1e9, 2.0, 20) is None


def test_a_lasting_change_becomes_usual() -> None:
    past = [1.0] * 10
    verdicts = []
    for _ in range(10):
        verdicts.append(above_median(past, 50.0, 20.0, 10) is not None)
        past = [*past, 50.0]
    assert verdicts == [True] * 5 + [False] * 5


def test_entropy_is_held_against_its_first_value() -> None:
    assert below_first([], 0.0, 0.1, 20) is None
    assert below_first([0.5, 9.0], 0.04, 0.1, 20) == Crossing(0.04, 0.05)
    assert below_first([0.5, 9.0], 0.06, 0.1, 20) is None


def test_a_fall_is_of_the_running_mean_from_its_highest() -> None:
    past = [-1.0] * 10 + [-0.2] * 5
    assert below_best_mean(past, -1.2, 0.5, 5) is None
    first = below_best_mean(past, -1.2, 0.1, 5)
    assert first is not None
    assert first.value == pytest.approx((4 * -0.2 - 1.2) / 5)
    fallen = below_best_mean([*past, *[-1.2] * 4], -1.2, 0.5, 5)
    assert fallen is not None
    assert [fallen.value, fallen.limit] == pytest.approx([-1.2, -0.7])


def test_one_good_step_at_the_start_is_no_record_to_fall_from() -> None:
    past = [0.0, -1.0, -1.0, -1.0]
    assert below_best_mean(past[:-1], -1.0, 0.1, 20) is None
    assert below_best_mean(past, -1.0, 0.1, 20) is None
    found = below_best_mean(past, -1.0, -0.1, 20)
    assert found is not None
    assert found.limit == pytest.approx(-0.7)


def test_a_rise_is_from_the_lowest_so_far() -> None:
    assert above_lowest([], 1.0, 0.5, 20) is None
    assert above_lowest([0.9, 0.1, 0.3], 0.65, 0.5, 20) == Crossing(0.65, 0.6)
    assert above_lowest([0.95, 0.97], 1.0, 0.5, 20) is None


def test_a_level_needs_no_past() -> None:
    assert above_limit([], 0.06, 0.05, 20) == Crossing(0.06, 0.05)
    assert above_limit([1.0], 0.05, 0.05, 20) is None


def test_a_trained_role_that_nobody_has_is_noticed(trajectory: Maker) -> None:
    plain = trajectory()
    writer = replace(plain, segments=(replace(plain.segments[0], role="writer"),))
    assert Guards(settings()).check_roles([plain, writer], ["writer"]) == []
    (verdict,) = Guards(settings()).check_roles([plain, writer], ["writer", "editor"])
    assert (verdict.guard, verdict.action, verdict.applies_update) == ("roles", "warn", True)
    assert "'editor'" in verdict.sentence
    assert "'writer'" in verdict.sentence


def test_roles_that_train_nothing_end_the_run_unless_they_once_did(trajectory: Maker) -> None:
    plain = trajectory()
    with pytest.raises(TrainingStopped, match=r"'writr'.*roles ''.*train\.roles"):
        Guards(settings()).check_roles([plain], ["writr"])
    known = Guards(settings(), [{"role/writer/tokens": 3.0}])
    (verdict,) = known.check_roles([plain], ["writer"])
    assert verdict.action == "warn"
