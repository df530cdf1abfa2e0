"""Replicas of an encoder or an index on a cluster: how many fit, and whether all nodes have the same libraries."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sleuth.cluster import ray_client
from sleuth.cluster.ray_client import Node
from sleuth.errors import ConfigError
from sleuth.retrieval.manifest import library_versions

START_SECONDS = 300.0  # for a process on every node: it imports sleuth, on a machine that may be busy


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The number of replicas, the device of each, and what each occupies."""

    count: int
    device: str
    needs: dict[str, float]


def plan_replicas(count: int | None, device: str, nodes: Sequence[Node]) -> ReplicaPlan:
    """Plan one GPU per replica if the cluster has any and `device` allows it, or else one CPU; None fills the cluster.

    Raises ConfigError if the cluster does not have that many.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"device = {device!r} has no effect on a cluster, where Ray chooses GPUs; use auto, cpu or cuda"
        )
    cpus, gpus = (int(sum(each)) for each in zip(*((node.cpus, node.gpus) for node in nodes), strict=True))
    on_gpus = device == "cuda" or (device == "auto" and gpus > 0)
    name, present = ("GPUs", gpus) if on_gpus else ("CPUs", cpus)
    count = max(1, present) if count is None else count
    if count > present:
        remedy = "lower replicas or shards, add nodes" + (", or use device cpu" if on_gpus else "")
        raise ConfigError(
            f"{count:,} replicas need {count:,} {name}, but the {len(nodes)} nodes of the cluster have {present}; "
            f"{remedy}"
        )
    return ReplicaPlan(count, "cuda" if on_gpus else "cpu", {"CPU": 1.0} | ({"GPU": 1.0} if on_gpus else {}))


def environment() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect vectors and scores."""
    return {"Python": platform.python_version(), **library_versions()}


@contextmanager
def connected_nodes(address: str) -> Iterator[list[Node]]:
    """Connect to the cluster at `address`; yield its nodes, all of which have the libraries of this process.

    Raises ConfigError, or InputError if sleuth cannot be imported on a node.
    """
    with ray_client.connected(address):
        nodes = [node for node in ray_client.living_nodes() if node.cpus]
        ours = environment()
        for node, theirs in zip(nodes, ray_client.call_on_nodes(environment, nodes, START_SECONDS), strict=True):
            for name in sorted(ours.keys() | theirs.keys()):
                if ours.get(name) != theirs.get(name):
                    raise ConfigError(
                        f"the node {node.address} has {name} {theirs.get(name, 'not installed')}, but this machine "
                        f"{ours.get(name, 'none')}; install the same version on every node"
                    )
        yield nodes
