"""The schedule of the modes: cases computed by hand, and what holds for every case."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.cluster.rates import ClusterRates, EpisodeShape, TurnShape
from sleuth.cluster.scenario import Mode, Scenario, WorkerLimits
from sleuth.cluster.simulation import predict

ROLLOUT = 0.01 + 0.2 + 1 + 0.005 + 0.3  # seconds of the one episode, of which one is a search
TRAIN = 0.02


def test_one_worker_and_one_episode(case: Any) -> None:
    found = predict(case.scenario(), case.rates())
    step = ROLLOUT + TRAIN
    assert found.step_seconds == pytest.approx(step)
    assert found.trajectories_per_second == pytest.approx(1 / step)
    assert found.trainer == pytest.approx({"train": TRAIN / step, "publish": 0.0, "idle": ROLLOUT / step})
    assert found.rollouts == pytest.approx({"busy": 0.515 / step, "search": 1 / step, "weights": TRAIN / step})
    assert (found.staleness_mean, found.staleness_max) == (0.0, 0)


def test_sync_waits_for_the_weights(case: Any) -> None:
    found = predict(case.scenario(), case.rates(weights=500_000_000))
    step = ROLLOUT + TRAIN + 0.5
    assert found.step_seconds == pytest.approx(step)
    assert found.trainer["publish"] == pytest.approx(0.5 / step)
    assert found.rollouts["weights"] == pytest.approx((TRAIN + 0.5) / step)


def test_the_second_worker_halves_the_rollouts_only_if_they_compute(case: Any) -> None:
    rates = case.rates(decode=((1, 100.0), (2, 100.0)), search=0.0)  # two sequences share 100 tokens per second
    seconds = [predict(case.scenario(questions=2, rollouts=each), rates).step_seconds for each in (1, 2)]
    assert seconds[1] == pytest.approx(0.515 + 2 * TRAIN)
    assert seconds[0] == pytest.approx(2 * 0.515 + 2 * TRAIN, rel=0.02)
    waiting = [predict(case.scenario(questions=2, rollouts=each), case.rates()).step_seconds for each in (1, 2)]
    assert waiting[0] == pytest.approx(waiting[1], rel=0.02)


def test_ahead_hides_the_shorter_of_rollouts_and_training(case: Any) -> None:
    for train, expected in ((10_000.0, ROLLOUT), (40.0, 5.0)):
        found = predict(case.scenario(mode="ahead", staleness=1), case.rates(train=train, weights=250_000_000))
        assert found.step_seconds == pytest.approx(expected + 0.25)
        # Only the first step is trained on the weights that sampled it.
        assert found.staleness_max == 1
        assert found.staleness_mean == pytest.approx(1, abs=0.1)


def test_shared_devices_slow_each_other_down(case: Any) -> None:
    scenario = case.scenario(mode="ahead", staleness=1, rollouts=None)
    rates = case.rates(train=200 / 0.515, search=0.0, overlap=0.5)
    assert predict(scenario, rates).step_seconds == pytest.approx(2 * 0.515)
    assert predict(case.scenario(rollouts=None), rates).step_seconds == pytest.approx(2 * 0.515)


def test_async_overlaps_batches_up_to_the_bound(case: Any) -> None:
    """Ten seconds of searches: with staleness k, k + 1 batches are in flight."""
    rates = case.rates(search=10.0)
    speed = {k: predict(case.scenario(mode="async", staleness=k), rates) for k in (1, 3)}
    assert speed[1].trajectories_per_second == pytest.approx(2 / 10.5, rel=0.02)
    assert speed[3].trajectories_per_second == pytest.approx(4 / 10.5, rel=0.02)
    assert [each.staleness_max for each in speed.values()] == [1, 3]
    # Running episodes take up new weights, so that most of their tokens are younger.
    assert speed[3].staleness_mean < 2


def test_new_weights_recompute_the_cache_unless_it_is_kept(case: Any) -> None:
    groups = tuple((case.episode(*[(100, 10, True)] * searches, (100, 10, False)),) for searches in range(5))
    rates = case.rates(groups=groups, prefill=1000.0)
    dropped = predict(case.scenario(mode="async", staleness=3), rates)
    kept = predict(case.scenario({"keep_cache": True}, mode="async", staleness=3), rates)
    assert kept.trajectories_per_second > 1.02 * dropped.trajectories_per_second


def test_groups_without_spread_are_not_trained_on(case: Any) -> None:
    turn = (100, 100, False)
    flat = (case.episode(turn, reward=1.0), case.episode(turn, reward=1.0))
    mixed = (case.episode(turn, reward=1.0), case.episode(turn, reward=0.0))
    seconds = []
    for group, drops in ((flat, True), (flat, False), (mixed, True)):
        rates = case.rates(groups=(group,), train=100.0, search=0.0)
        seconds.append(predict(case.scenario(samples=2, drops_flat_groups=drops), rates).step_seconds)
    assert seconds[1] == pytest.approx(seconds[0] + 4.0)
    assert seconds[2] == pytest.approx(seconds[1])


def test_trainers_share_the_tokens_until_collectives_dominate(case: Any) -> None:
    rates = case.rates(train=100.0, step=0.1, pack_seconds=0.3)
    seconds = [rates.train_seconds(1600, 1600, trainers, updates=2) for trainers in (1, 8, 64)]
    assert seconds == pytest.approx([16.1, 2.1, 0.7])


@pytest.mark.parametrize("search", [0.0, 0.3, 3.0])
def test_more_rollout_workers_never_slow_async_down(case: Any, search: float) -> None:
    group = tuple(case.episode((80, 10 * n, True), (40, 5 * n, False)) for n in range(1, 9))
    rates = case.rates(groups=(group,), decode=((1, 100.0), (64, 800.0)), search=search)
    speeds = [
        predict(case.scenario(questions=8, samples=8, mode="async", staleness=2, rollouts=workers), rates)
        for workers in (1, 2, 3, 4, 6, 8)
    ]
    rising = [each.trajectories_per_second for each in speeds]
    assert all(after > 0.99 * before for before, after in pairwise(rising))
    assert rising[-1] > 1.5 * rising[0]


def test_same_seed_same_prediction(case: Any) -> None:
    group = tuple(case.episode((80, 10 * n, True), (40, 5 * n, False)) for n in range(1, 9))
    rates = case.rates(groups=(group, group[:4]))
    scenarios = [case.scenario(questions=4, samples=2, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (predict(each, rates) for each in scenarios)
    assert first == again
    assert first != other


TURNS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90), st.booleans()), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(TURNS, min_size=1, max_size=6),
    mode=st.sampled_from(["sync", "ahead", "async"]),
    bound=st.integers(1, 4),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
    limits=st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.booleans(), st.booleans()),
    costs=st.tuples(st.floats(0, 0.1), st.floats(0, 5), st.floats(10, 1e5), st.floats(0.3, 1)),
    shared=st.booleans(),
)
def test_nothing_is_lost_and_the_bound_holds(
    shapes: list[list[tuple[int, int, bool]]],
    mode: Mode,
    bound: int,
    sizes: tuple[int, int, int],
    limits: tuple[int, int, int, bool, bool],
    costs: tuple[float, float, float, float],
    shared: bool,
) -> None:
    staleness = {"sync": 0, "ahead": 1, "async": bound}[mode]
    questions, samples, workers = sizes
    episodes = tuple(EpisodeShape(tuple(TurnShape(*turn) for turn in turns)) for turns in shapes)
    turn, search, train, overlap = costs
    rates = ClusterRates(
        "drawn", ((1, 90.0), (8, 300.0)), 5e3, turn, train, None, 0.01, 999, 0.0, 9, 1e3, search, overlap, (episodes,)
    )
    scenario = Scenario(
        questions, samples, 1, mode, staleness, workers, None if shared else workers, WorkerLimits(*limits), True, 3
    )
    found = predict(scenario, rates)
    total = (scenario.warmup + scenario.steps + staleness) * questions * samples
    assert (found.asked, found.finished, found.trained) == (total, total, total)
    assert found.staleness_mean <= found.staleness_max <= staleness
    for shares in (found.trainer, found.rollouts):
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= -1e-9
