"""Rates measured in runs: what a simulated run recorded is found again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sleuth.cluster.measured_rates import measure_rates, measured_steps
from sleuth.cluster.planned_rates import plan_rates
from sleuth.cluster.rates import ClusterRates, EpisodeShape, GroupShape
from sleuth.cluster.scenario import Scenario, describe_scenario
from sleuth.cluster.simulation import Simulation, draw_groups, predict
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.errors import InputError
from sleuth.model.shapes import shape_of_folder
from sleuth.runs.run import Run
from sleuth.train.accelerators import find
from sleuth.train.plan import Models

STEPS = 4
FEW = ("train.questions=4", "train.samples=4")
AHEAD = ("train.mode=ahead", "algorithm.correction.level=token")


@pytest.fixture(scope="module")
def base() -> ClusterRates:
    """The planner's rates of the quickstart."""
    config = recipe.load("quickstart")
    models = Models.of(config, lambda name: shape_of_folder(recipe.resolve_policy(name)))
    return plan_rates(config, find("cpu"), models)


@pytest.fixture
def truth(base: ClusterRates, case: Any) -> ClusterRates:
    """Rates of a machine that is slower than planned, and episodes of several lengths."""
    group = tuple(case.episode((120, 12 + 5 * n, True), (60, 30 - 2 * n, False), reward=float(n % 2)) for n in range(8))
    short = tuple(case.episode((110, 20 + n, False), reward=1.0) for n in range(8))
    decode = tuple((count, rate / 1.7) for count, rate in base.decode)
    return replace(
        base, decode=decode, prefill=base.prefill / 1.7, turn=base.turn * 1.7, train=5000.0, score=70_000.0, step=0.02,
        search=0.05, transfer=base.weights / 0.004, overlap=0.6, groups=(group, short),
    )  # fmt: skip


def write_run(path: Path, truth: ClusterRates, *settings: str) -> Run:
    """Record a run of the quickstart as it would be on a machine with these rates."""
    return write_run_of(recipe.load("quickstart", settings), path, truth)


def write_run_of(config: Config, path: Path, truth: ClusterRates) -> Run:
    run = Run.create(path, {"config": recipe.resolved(config), "inputs": {}})
    run.append_metrics(0, {"parity/k3": 0.0})
    scenario = describe_scenario(config, "cpu")
    drawn = draw_groups(truth, scenario.samples, seed=7)
    for step in range(1, STEPS + 1):
        groups = tuple(islice(drawn, scenario.questions))
        run.write_trajectories(step, rows(groups))
        run.append_metrics(step, metrics(scenario, truth, groups))
    return run


def rows(groups: Sequence[GroupShape]) -> Iterator[dict[str, Any]]:
    for number, group in enumerate(groups):
        for sample, episode in enumerate(group):
            yield {"question_id": f"q{number}", "group": number, "sample": sample, **row(episode)}


def row(episode: EpisodeShape) -> dict[str, Any]:
    origin = [
        [kind, count] for turn in episode.turns for kind, count in (("given", turn.given), ("sampled", turn.sampled))
    ]
    turns = [{"action": "search" if turn.searches else "answer"} for turn in episode.turns]
    return {"ids": [1] * episode.tokens, "origin": origin, "turns": turns, "score": {"total": episode.reward}}


def metrics(scenario: Scenario, truth: ClusterRates, groups: Sequence[GroupShape]) -> dict[str, float]:
    simulation = Simulation(replace(scenario, mode="sync", staleness=0), truth, iter(groups), steps=1)
    simulation.run()
    work, rollouts = simulation.workers[0].work, simulation.collected
    tokens = sum(episode.tokens for group in groups for episode in group)
    trained = sum(sum(each.tokens for each in group) for group in groups if len({each.reward for each in group}) > 1)
    assert truth.score is not None
    phases = {"train": trained / truth.train, "score": tokens / truth.score, "optimiser": 0.02, "publish": 0.004}
    whole = rollouts + sum(phases.values())
    if scenario.mode == "ahead":
        whole = predict(scenario, truth).step_seconds
        rollouts = max(0.0, whole - sum(phases.values()))
    return {
        "time/episodes": rollouts, "time/reward": 0.0, "time/generate": rollouts, "time/step": whole,
        **{f"time/{name}": value for name, value in phases.items()},
        "train/tokens": trained, "episode/tokens_all": tokens,
        "search/count": work.searched, "search/latency": work.search_seconds / max(1, work.searched),
    }  # fmt: skip


def speed(rates: ClusterRates, *settings: str) -> float:
    config: Config = recipe.load("quickstart", settings)
    return predict(describe_scenario(config, "cpu"), rates).trajectories_per_second


def test_one_run_predicts_other_settings(tmp_path: Path, base: ClusterRates, truth: ClusterRates) -> None:
    found = measure_rates([write_run(tmp_path / "run", truth)], base, "cpu")
    assert found.train == pytest.approx(truth.train)
    assert found.score == pytest.approx(truth.score)
    assert (found.step, found.search, found.publish) == pytest.approx((0.02, 0.05, 0.004))
    assert found.decode_step(64) == pytest.approx(truth.decode_step(64), rel=0.1)
    assert str(tmp_path / "run") in found.source
    for settings in ((), FEW, ("engine.slots=16",), ("engine.lockstep=off",)):
        assert speed(found, *settings) == pytest.approx(speed(truth, *settings), rel=0.1), settings


def test_queueing_is_not_part_of_a_search(tmp_path: Path, base: ClusterRates, truth: ClusterRates) -> None:
    """Of 128 searches 4 run at a time: their recorded latency is longer than a search."""
    truth = replace(truth, search=0.4)
    retrieval = {"index": "import:mine.search", "service": {"concurrency": 4}}
    config = recipe.compose({"data": {"train": "a.jsonl", "test": "b.jsonl"}, "retrieval": retrieval})
    run = write_run_of(config, tmp_path / "run", truth)
    (first, *_) = measured_steps(run, "cpu")
    assert first.metrics["search/latency"] > 0.6
    assert measure_rates([run], base, "cpu").search == pytest.approx(0.4, rel=0.1)


def test_runs_ahead_show_what_sharing_a_device_costs(tmp_path: Path, base: ClusterRates, truth: ClusterRates) -> None:
    runs = [write_run(tmp_path / "sync", truth), write_run(tmp_path / "ahead", truth, *AHEAD)]
    found = measure_rates(runs, base, "cpu")
    assert found.overlap == pytest.approx(0.6, abs=0.1)
    assert speed(found, *AHEAD) == pytest.approx(speed(truth, *AHEAD), rel=0.05)
    assert measure_rates(runs[1:], base, "cpu").overlap == 1.0


def test_short_and_foreign_runs_are_refused(tmp_path: Path, base: ClusterRates, truth: ClusterRates) -> None:
    config = recipe.resolved(recipe.load("quickstart"))
    empty = Run.create(tmp_path / "empty", {"config": config, "inputs": {}})
    with pytest.raises(InputError, match="0 training steps"):
        measure_rates([empty], base, "cpu")
    run = write_run(tmp_path / "agents", truth)
    segment = {"ids": [1, 2], "origin": [["given", 1], ["sampled", 1]]}
    run.write_trajectories(2, [{"question_id": "q0", "group": 0, "segments": [segment, segment], "turns": []}])
    with pytest.raises(InputError, match="2 segments"):
        measure_rates([run], base, "cpu")
    run.trajectories(2).unlink()
    with pytest.raises(InputError, match=r"step-2\.jsonl"):
        measure_rates([run], base, "cpu")
