"""The placement of a run: what each actor needs, whether the cluster has it, and where Ray put it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sleuth.cluster import ray_client
from sleuth.cluster.ray_client import Node
from sleuth.config.cluster import ClusterConfig

TRAINER, ROLLOUT, RETRIEVER = "trainer", "rollout worker", "retriever"


@dataclass(frozen=True, slots=True)
class Place:
    """One actor of a run and what it occupies; `number` counts the actors of its role."""

    role: str
    number: int
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}"

    @property
    def needs(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


def plan_places(config: ClusterConfig, nodes: Sequence[Node]) -> list[Place]:
    """List the actors of a run; on a cluster without GPUs none needs one."""
    has_gpus = any(node.gpus for node in nodes)
    roles = (
        (TRAINER, config.trainers, config.trainer_gpus),
        (ROLLOUT, config.rollouts, config.rollout_gpus),
        (RETRIEVER, config.retrievers, config.retriever_gpus),
    )
    return [
        Place(role, number, config.cpus, gpus if has_gpus else 0.0)
        for role, count, gpus in roles
        for number in range(count)
    ]


def describe_shortage(places: Sequence[Place], nodes: Sequence[Node]) -> str | None:
    """Say which resource the whole cluster lacks; None if it has enough of each."""
    for name, needed, present in (
        ("GPUs", sum(place.gpus for place in places), sum(node.gpus for node in nodes)),
        ("CPUs", sum(place.cpus for place in places), sum(node.cpus for node in nodes)),
    ):
        if needed > present:
            return (
                f"{_count_roles(places)} need {needed:g} {name}, but the {len(nodes)} nodes of the cluster have "
                f"{present:g}; lower cluster.trainers, rollouts or retrievers, their shares, or cluster.cpus"
            )
    return None


def describe_fragments(places: Sequence[Place], nodes: Sequence[Node], wait: float) -> str:
    """Say that the cluster has enough resources in total, but not free or not together."""
    machines = ", ".join(f"{node.address}: {node.cpus:g} CPUs, {node.gpus:g} GPUs" for node in nodes)
    return (
        f"{_count_roles(places)} were not placed within {wait:g} s ({machines}): the resources are in use or on "
        "separate machines; see `ray status`, lower the shares, or raise cluster.patience"
    )


def describe_placement(places: Sequence[Place], nodes: Sequence[Node], chosen: Sequence[str]) -> Iterator[str]:
    """Yield one line per machine with the actors that Ray put there; `chosen` holds the node id of each place."""
    for node in nodes:
        here = [place for place, id_ in zip(places, chosen, strict=True) if id_ == node.id]
        used = f"{sum(place.cpus for place in here):g} of {node.cpus:g} CPUs"
        if node.gpus:
            used += f", {sum(place.gpus for place in here):g} of {node.gpus:g} GPUs"
        names = ", ".join(f"{place.name} ({place.gpus:g} GPU)" if place.gpus else place.name for place in here)
        yield f"{node.address} {node.id[:8]}: {used}: {names or 'nothing'}"


def _count_roles(places: Sequence[Place]) -> str:
    counts: Mapping[str, int] = Counter(place.role for place in places)
    return ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in counts.items())


def waiting_time(address: str, patience: float) -> float:
    """Seconds to wait for a placement: a cluster in this process does not grow."""
    return min(patience, ray_client.LOCAL_WAIT) if address == ray_client.LOCAL else patience
