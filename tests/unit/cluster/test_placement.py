"""What a run needs, what a cluster lacks, and how a placement reads."""

import pytest

from sleuth.cluster.driver import require_supported_on_ray
from sleuth.cluster.placement import describe_fragments, describe_placement, describe_shortage, plan_places
from sleuth.cluster.ray_client import Node, _describe_connection
from sleuth.config import recipe
from sleuth.config.cluster import ClusterConfig
from sleuth.errors import ConfigError

BIG = Node("a" * 56, "10.0.0.1", 16, 8)
SMALL = Node("b" * 56, "10.0.0.2", 4, 0)


def test_places_take_gpu_shares_where_there_are_gpus() -> None:
    config = ClusterConfig(trainers=2, rollouts=3, retrievers=1, trainer_gpus=0.5, rollout_gpus=0.5)
    places = plan_places(config, [BIG, SMALL])
    assert [place.name for place in places] == [
        "trainer 0", "trainer 1", "rollout worker 0", "rollout worker 1", "rollout worker 2", "retriever 0",
    ]  # fmt: skip
    assert [place.needs for place in places[1:]] == [*[{"CPU": 1.0, "GPU": 0.5}] * 4, {"CPU": 1.0}]
    assert all("GPU" not in place.needs for place in plan_places(config, [SMALL]))


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (ClusterConfig(trainers=8, rollouts=1), ["8 trainers, 1 rollout worker", "9 GPUs", "have 8"]),
        (ClusterConfig(trainers=4, rollouts=4, cpus=3.0), ["24 CPUs", "have 20"]),
    ],
)
def test_shortage_names_what_is_missing(config: ClusterConfig, facts: list[str]) -> None:
    line = describe_shortage(plan_places(config, [BIG, SMALL]), [BIG, SMALL])
    assert line is not None
    assert all(fact in line for fact in facts)
    assert describe_shortage(plan_places(ClusterConfig(), [BIG, SMALL]), [BIG, SMALL]) is None


def test_placement_has_a_line_for_each_machine() -> None:
    places = plan_places(ClusterConfig(rollouts=2), [BIG, SMALL])
    big, small = describe_placement(places, [BIG, SMALL], [BIG.id] * 3)
    assert big == (
        "10.0.0.1 aaaaaaaa: 3 of 16 CPUs, 3 of 8 GPUs: trainer 0 (1 GPU), rollout worker 0 (1 GPU), "
        "rollout worker 1 (1 GPU)"
    )
    assert small == "10.0.0.2 bbbbbbbb: 0 of 4 CPUs: nothing"
    assert "10.0.0.2: 4 CPUs" in describe_fragments(places, [BIG, SMALL], 60)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (["retrieval.record=true"], "retrieval.record"),
        (["engine.lockstep=on"], "engine.lockstep"),
        (["cluster.trainers=3"], "train.questions = 16"),
        (["cluster.rollout_gpus=2"], "rollout_gpus = 2"),
        (["engine.kind=vllm", "engine.weights=device", "cluster.rollout_gpus=2"], "engine.weights = disk"),
        (["engine.kind=sglang", "engine.weights=collective"], "engine.url"),
        (["engine.kind=vllm", "engine.url=http://a:1", "cluster.rollouts=2"], "cluster.rollouts = 2"),
    ],
)
def test_settings_that_do_not_work_on_a_cluster(changes: list[str], fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        require_supported_on_ray(recipe.load("quickstart", changes))


@pytest.mark.parametrize(
    "changes",
    [
        ["cluster.retrievers=2"],
        ["engine.kind=vllm", "cluster.rollout_gpus=2"],
        ["engine.kind=sglang", "engine.weights=collective", "engine.url=http://a:1", "cluster.trainers=2"],
    ],
)
def test_settings_that_work_on_a_cluster(changes: list[str]) -> None:
    require_supported_on_ray(recipe.load("quickstart", changes))


@pytest.mark.parametrize(
    "change", ["cluster.rollouts=0", "cluster.trainer_gpus=1.5", "cluster.cpus=0", "cluster.gpus=1"]
)
def test_bad_settings_are_refused(change: str) -> None:
    with pytest.raises(ConfigError, match=change.partition("=")[0].partition(".")[2]):
        recipe.load("quickstart", [change])


def test_replicas_need_a_local_index() -> None:
    lines = ["data.train=q.jsonl", "data.test=q.jsonl", "retrieval.index=http://127.0.0.1:1", "cluster.retrievers=1"]
    with pytest.raises(ConfigError, match="retrievers = 1"):
        require_supported_on_ray(recipe.compose({}, lines))


def test_version_mismatch_is_one_line() -> None:
    told = "Version mismatch: The cluster was started with:\n    Ray: 2.58.0\n    Python: 3.12.1\nThis process"
    line = _describe_connection("10.0.0.1:6379", RuntimeError(told))
    assert "Ray: 2.58.0 Python: 3.12.1" in line
    assert "\n" not in line
