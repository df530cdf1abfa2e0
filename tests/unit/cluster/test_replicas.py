"""How many replicas a cluster holds, and on what."""

import pytest

from sleuth.cluster.ray_client import Node
from sleuth.cluster.replicas import plan_replicas
from sleuth.errors import ConfigError

GPUS = Node("a" * 56, "10.0.0.1", 16, 8)
CPUS = Node("b" * 56, "10.0.0.2", 4, 0)


@pytest.mark.parametrize(
    ("count", "device", "nodes", "planned"),
    [
        (None, "auto", [GPUS, CPUS], (8, "cuda", {"CPU": 1.0, "GPU": 1.0})),
        (None, "auto", [CPUS], (4, "cpu", {"CPU": 1.0})),
        (None, "cpu", [GPUS, CPUS], (20, "cpu", {"CPU": 1.0})),
        (3, "cuda", [GPUS], (3, "cuda", {"CPU": 1.0, "GPU": 1.0})),
    ],
)
def test_replicas_use_gpus_where_there_are_any(
    count: int | None, device: str, nodes: list[Node], planned: tuple[int, str, dict[str, float]]
) -> None:
    plan = plan_replicas(count, device, nodes)
    assert (plan.count, plan.device, plan.needs) == planned


@pytest.mark.parametrize(
    ("count", "device", "nodes", "facts"),
    [
        (9, "auto", [GPUS, CPUS], ["9 GPUs", "2 nodes", "have 8", "device cpu"]),
        (5, "auto", [CPUS], ["5 CPUs", "have 4"]),
        (1, "cuda", [CPUS], ["1 GPUs", "have 0"]),
        (1, "cuda:1", [GPUS], ["cuda:1", "auto, cpu or cuda"]),
    ],
)
def test_more_than_the_cluster_has_is_an_error(count: int, device: str, nodes: list[Node], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_replicas(count, device, nodes)
    assert all(fact in str(caught.value) for fact in facts)
