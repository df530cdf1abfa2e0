"""The driver of a run on Ray: places the actors, starts the trainer ranks, and shows what they report.

The driver owns all actors: when it ends, also by kill -9, Ray ends them.
"""

import pkgutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth.agent.loading import RunSources
from sleuth.cluster import ray_client
from sleuth.cluster.actor import DIED, KINDS, Failure, require_same_versions
from sleuth.cluster.backend import RayBackend
from sleuth.cluster.placement import (
    RETRIEVER,
    ROLLOUT,
    TRAINER,
    Place,
    describe_fragments,
    describe_placement,
    describe_shortage,
    plan_places,
    waiting_time,
)
from sleuth.cluster.pool import Member
from sleuth.cluster.retrievers import RetrieverReplica
from sleuth.cluster.trainer import RankSpec, TrainerRank
from sleuth.cluster.worker import RolloutWorker
from sleuth.config import recipe
from sleuth.config.cluster import ClusterConfig
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, InputError
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run
from sleuth.train.backend import LOCAL, RolloutBackend
from sleuth.train.guards import RESUME
from sleuth.train.observer import RunObserver
from sleuth.train.ranks import require_supported

POLL_SECONDS = 0.2
GRACE = 5.0  # seconds for other ranks to fail, too: a rank that died explains those that lost it
THREADS = 4  # of a trainer rank: training, events, interrupts


def require_supported_on_ray(config: Config) -> None:
    """Raise ConfigError if a setting does not work on a cluster."""
    require_supported(config, config.cluster.trainers)
    _require_supported_servers(config)
    if config.retrieval.record:
        raise ConfigError("retrieval.record = true needs one process, but every worker searches; leave out --ray")
    if config.engine.lockstep == "on":
        raise ConfigError("engine.lockstep = on has no effect on rollout workers; remove it, or leave out --ray")
    searches_here = config.has_index and not config.agent.is_outside and config.retrieval.local
    if config.cluster.retrievers and not searches_here:
        raise ConfigError(
            f"cluster.retrievers = {config.cluster.retrievers} has no effect without a local index that the workers "
            "search; set it to 0"
        )


def _require_supported_servers(config: Config) -> None:
    engine, cluster = config.engine, config.cluster
    if engine.url:
        for name in ("rollouts", "rollout_gpus", "retrievers", "retriever_gpus"):
            if name in cluster.model_fields_set:
                raise ConfigError(
                    f"cluster.{name} = {getattr(cluster, name)} has no effect with engine.url, because the trainer "
                    "ranks run the episodes on those servers; remove it"
                )
    elif engine.weights == "collective":
        raise ConfigError(
            "engine.weights = collective needs engine.url on Ray: a rollout worker and its server share their GPUs; "
            "set disk or device"
        )
    if cluster.rollout_gpus > 1 and (not engine.is_server or engine.weights == "device"):
        raise ConfigError(
            f"cluster.rollout_gpus = {cluster.rollout_gpus:g} needs engine.kind = vllm or sglang, whose servers run on "
            f"several GPUs, with engine.weights = disk, not engine.kind = {engine.kind} with {engine.weights}; "
            "lower it to 1, or change these"
        )


def _placed_roles(config: Config) -> ClusterConfig:
    """The cluster settings with the actors that the run needs: none for rollouts on servers at addresses."""
    return config.cluster.model_copy(update={"rollouts": 0, "retrievers": 0} if config.engine.url else {})


@dataclass(frozen=True, slots=True)
class Placement:
    """The actors of a run with the machines that Ray chose."""

    group: Any
    places: Sequence[Place]
    lines: tuple[str, ...]

    def start(self, role: str, cls: type, *arguments: Any, **options: Any) -> list[Any]:
        """Start the actors of a role."""
        return [
            ray_client.start_actor(cls, arguments, self.group, bundle, place.needs, **options)
            for bundle, place in enumerate(self.places)
            if place.role == role
        ]


@contextmanager
def place_actors(config: Config, address: str) -> Iterator[Placement]:
    """Connect to the cluster and reserve what the run needs; raises ConfigError if the cluster does not have it."""
    with ray_client.connected(address):
        nodes = ray_client.living_nodes()
        places = plan_places(_placed_roles(config), nodes)
        wait = waiting_time(address, config.cluster.patience)
        if address == ray_client.LOCAL and (shortage := describe_shortage(places, nodes)):
            raise ConfigError(shortage)
        try:
            with ray_client.placed([place.needs for place in places], wait) as group:
                nodes = ray_client.living_nodes()
                lines = describe_placement(places, nodes, ray_client.bundle_nodes(group))
                yield Placement(group, places, tuple(lines))
        except TimeoutError as error:
            nodes = ray_client.living_nodes()
            problem = describe_shortage(places, nodes) or describe_fragments(places, nodes, wait)
            raise ConfigError(problem) from error


def train_on_cluster(
    begun: Run | Config, folder: Path, observer: RunObserver, changes: Sequence[str], address: str
) -> tuple[Path, Mapping[str, Any]]:
    """Start or resume a run on a Ray cluster; return its folder and summary."""
    folder = folder.resolve()
    match begun:
        case Run():
            begun = Run(folder)
            config = recipe.amend(begun.config_and_inputs()[0], changes)
        case Config():
            begun = config = recipe.with_absolute_paths(begun)
    require_supported_on_ray(config)
    with place_actors(config, address) as placement:
        for line in placement.lines:
            observer.log(line)
        trainers, backend = _start_actors(config, folder, placement)
        host, port = _open_store(trainers)
        specs = [RankSpec(rank, len(trainers), host, port) for rank in range(len(trainers))]
        calls = [
            trainer.train.remote(spec, begun, folder, tuple(changes), backend)
            for spec, trainer in zip(specs, trainers, strict=True)
        ]
        return folder, _follow(trainers, calls, observer)


def _start_actors(config: Config, folder: Path, placement: Placement) -> tuple[list[Any], RolloutBackend]:
    """Start all actors and wait until each runs; raises InputError or ConfigError if one cannot."""
    chosen = set(ray_client.bundle_nodes(placement.group))
    nodes = [node for node in ray_client.living_nodes() if node.id in chosen]
    # Checked with a standard-library function first: an actor whose class cannot be imported prints a traceback.
    ray_client.call_on_nodes(pkgutil.resolve_name, nodes, config.cluster.patience, "sleuth:__version__")
    home, index = str(Path.cwd()), RunSources.of(config, Run(folder)).index
    restarts = config.cluster.restarts
    replicas = placement.start(RETRIEVER, RetrieverReplica, config, folder, index, home, max_restarts=restarts)
    workers = placement.start(ROLLOUT, RolloutWorker, config, folder, index, home, max_restarts=restarts)
    trainers = placement.start(TRAINER, TrainerRank, home, max_concurrency=THREADS)
    greetings = []
    for place, actor in zip(placement.places, [*trainers, *workers, *replicas], strict=True):
        greeting = ray_client.require_started(actor, place.name, config.cluster.patience)
        require_same_versions(place.name, greeting)
        greetings.append(greeting)
    if config.engine.url:
        return trainers, LOCAL
    members = [
        Member(number, worker, greeting, tuple(replicas))
        for number, (worker, greeting) in enumerate(zip(workers, greetings[len(trainers) :], strict=False))
    ]
    return trainers, RayBackend(members, replicas)


def _open_store(trainers: Sequence[Any]) -> tuple[str, int]:
    """Open the store of rank 0 and return its address; raises InputError if another rank cannot reach it.

    torch would try to connect for minutes.
    """
    host, port = ray_client.get(trainers[0].open_store.remote())
    problems = ray_client.get([trainer.reach.remote(host, port) for trainer in trainers[1:]])
    for rank, problem in enumerate(problems, 1):
        if problem is not None:
            raise InputError(
                f"trainer rank {rank} cannot reach trainer rank 0 at {host}:{port} ({problem}); open all ports between "
                "the nodes"
            )
    return host, port


def _follow(trainers: Sequence[Any], calls: Sequence[Any], observer: RunObserver) -> Mapping[str, Any]:
    """Replay the events of rank 0 until every rank has ended; forward signals; return the summary."""
    waiting, forwarded = list(calls), False
    with INTERRUPTION.defer():
        while waiting:
            ended = ray_client.wait(waiting, POLL_SECONDS)
            _replay(trainers[0], observer)
            if INTERRUPTION.signal is not None and not forwarded:
                forwarded = True
                for trainer in trainers:
                    trainer.interrupt.remote(INTERRUPTION.signal)
            for call in ended:
                waiting.remove(call)
                if failure := _failure_of(call, calls.index(call)):
                    _explain(failure, calls).reraise()
        _replay(trainers[0], observer)
    summary: Mapping[str, Any] = ray_client.get(calls[0])
    return summary


def _failure_of(call: Any, rank: int) -> Failure | None:
    """Return how a rank failed; None if it finished."""
    try:
        found = ray_client.get(call)
    except Exception as error:
        cause = ray_client.describe_failure(error)
        if not ray_client.is_lost(error):
            raise
        return Failure(DIED, f"trainer rank {rank} died ({cause}); {RESUME}")
    return found if isinstance(found, Failure) else None


def _explain(failure: Failure, calls: Sequence[Any]) -> Failure:
    """Return the failure that explains those of the other ranks which fail within a moment."""
    time.sleep(GRACE if len(calls) > 1 else 0.0)
    ended = [(rank, call) for rank, call in enumerate(calls) if ray_client.wait([call], 0)]
    every = [failure, *filter(None, (_failure_of(call, rank) for rank, call in ended))]
    return min(every, key=lambda each: KINDS.index(each.kind))


def _replay(trainer: Any, observer: RunObserver) -> None:
    """Pass the events of a trainer rank to an observer of this process."""
    try:
        events = ray_client.get(trainer.events.remote())
    except Exception as error:
        if not ray_client.is_lost(error):
            raise
        return  # its call fails too, and says more
    for name, arguments in events:
        getattr(observer, name)(*arguments)


def preview_placement(config: Config, address: str) -> tuple[str, ...]:
    """Reserve the resources of a run, return where Ray placed its actors, and free them again."""
    require_supported_on_ray(config)
    with place_actors(config, address) as placement:
        return placement.lines
