"""The rollout worker: an engine with its own weights, tools and retriever, as an async Ray actor."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from sleuth.agent.episode import Agent
from sleuth.agent.loading import SEARCHES, build_agent, require_search
from sleuth.agent.task import Task
from sleuth.agent.tools import Usage
from sleuth.cluster import ray_client
from sleuth.cluster.actor import Failure, Greeting, enter, greet
from sleuth.cluster.retrievers import ReplicatedRetriever
from sleuth.cluster.weights import BroadcastGroup, Bucket, GpuHandle, GroupSpec, read_objects, unpack
from sleuth.cluster.worker_engine import EmbeddedEngine, OwnServer, WorkerEngine
from sleuth.config.tree import Config
from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.errors import EngineFailure, TrainingStopped, UserError
from sleuth.records import Trajectory

Counts = TypeVar("Counts", Usage, EngineStats)

SAMPLE_SECONDS = 0.05
BUSY, SEARCHING, WEIGHTS, IDLE = "busy", "waiting_search", "waiting_weights", "idle"
STATES = (BUSY, SEARCHING, WEIGHTS, IDLE)


@dataclass(slots=True)
class WorkerUsage:
    """What a worker did since it was last asked: engine and tool counts, and seconds in each state."""

    stats: EngineStats = field(default_factory=EngineStats)
    searches: Usage = field(default_factory=Usage)
    tools: dict[str, Usage] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished episode, under the number of the attempt, and what the worker did since its last reply."""

    attempt: int
    trajectory: Trajectory | Failure
    usage: WorkerUsage


def difference(now: Counts, before: Counts) -> Counts:
    """Subtract the counts of an earlier snapshot; both have the same fields."""
    names = [name for name in asdict(now) if not name.startswith("_") and name != "running"]
    return type(now)(**{name: getattr(now, name) - getattr(before, name) for name in names})


def add(total: Counts, more: Counts) -> None:
    """Add counts to a total in place."""
    for name in asdict(more):
        if not name.startswith("_") and name != "running":
            setattr(total, name, getattr(total, name) + getattr(more, name))


class RolloutWorker:
    """Runs episodes; its methods are called through Ray. It waits for weights before the first episode."""

    def __init__(self, config: Config, folder: Path, index: Path, home: str) -> None:
        enter(home)
        self._config, self._folder, self._index = config, folder, index
        self._agent: Agent | None = None
        self._engine: WorkerEngine | None = None
        self._group: BroadcastGroup | None = None
        self._transfer, self._copied = 0, dict[str, Tensor]()  # weights of the next version, copied in this transfer
        self._opening, self._has_weights = asyncio.Lock(), asyncio.Event()
        self._receiving = self._running = 0
        self._usage = _UsageMeter()
        self._sampler: asyncio.Task[None] | None = None

    async def hello(self) -> Greeting:
        return greet()

    async def open(self, replicas: Sequence[Any], number: int) -> Failure | None:
        """Load the model and open the index, or connect to its replicas, once; a user's error is returned.

        Not in the constructor: Ray could not restart an actor whose arguments hold handles of others.
        """
        async with self._opening:
            if self._agent is not None:
                return None
            try:
                self._agent = await asyncio.to_thread(self._load, replicas, number)
            except (UserError, TrainingStopped) as error:
                return Failure.of(error)
        self._sampler = asyncio.create_task(self._sample_states())
        return None

    def _load(self, replicas: Sequence[Any], number: int) -> Agent:
        config = self._config
        if not replicas:
            require_search(config)
        is_server = config.engine.is_server
        engine = OwnServer.start(config, self._folder, number) if is_server else EmbeddedEngine.load(config)
        self._engine = engine
        retriever = ReplicatedRetriever(replicas, config.cluster.patience) if replicas else None
        return build_agent(
            config, engine.engine, engine.tokens, self._index, self._folder / SEARCHES, retriever=retriever
        )

    async def ready(self) -> None:
        """Return once the worker has weights to sample with."""
        await self._has_weights.wait()

    async def watch(self) -> None:
        """Never return: the call fails when this worker dies."""
        await asyncio.Event().wait()

    async def pulse(self) -> None:
        """Return at once, unless the process hangs."""

    async def run(self, attempt: int, task: Task, order: int) -> Reply:
        """Run an episode to its end."""
        await self._has_weights.wait()
        assert self._agent is not None  # noqa: S101  it has weights
        assert self._engine is not None  # noqa: S101  it has weights
        self._running += 1
        try:
            trajectory: Trajectory | Failure = await self._agent.run(task, order)
        except UserError as error:
            trajectory = Failure.of(error)
        finally:
            self._running -= 1
        self._leave_if_dead()
        return Reply(attempt, trajectory, self._usage.take(self._agent, self._engine.stats))

    async def generate(self, ids: Sequence[int], sampling: Sampling, priority: int) -> Completion | str:
        """Sample a continuation for an agent that runs elsewhere; a failure of the engine is returned as text."""
        await self._has_weights.wait()
        assert self._engine is not None  # noqa: S101  it has weights
        self._running += 1
        try:
            with self._engine.engine.session(priority) as session:
                return await self._engine.engine.generate(ids, sampling, session)
        except EngineFailure as failure:
            self._leave_if_dead()
            return str(failure)
        finally:
            self._running -= 1

    async def reach(self, host: str, port: int) -> str | None:
        """Try to connect to trainer rank 0; return why that failed, or None."""
        return await asyncio.to_thread(ray_client.reach, host, port)

    async def join(self, spec: GroupSpec, rank: int) -> None:
        """Join a generation of the weights group, leaving the one before."""
        self._group = None
        self._group = await asyncio.to_thread(spec.join, rank, ray_client.own_address())

    async def receive(self, version: int, buckets: Sequence[Bucket], keep_cache: bool) -> None:
        """Receive a version through the group while episodes go on, and switch to it between two decode steps."""
        group = self._group
        if group is None:
            raise RuntimeError("this worker is in no weights group")
        await self._publish(version, lambda: group.receive(buckets), keep_cache)

    async def copy(self, transfer: int, bucket: Bucket, handle: GpuHandle) -> None:
        """Copy a bucket of the next version from trainer rank 0, which is on the same GPU."""
        self._receiving += 1
        try:
            copied = unpack(await asyncio.to_thread(handle.copy), bucket)
        finally:
            self._receiving -= 1
        if transfer > self._transfer:
            self._transfer, self._copied = transfer, {}
        if transfer == self._transfer:  # else it comes too late, and a mix of two versions must not be published
            self._copied.update(copied)

    async def switch(self, transfer: int, version: int, buckets: Sequence[Bucket], keep_cache: bool) -> None:
        """Switch to the version that was copied in this transfer; raises RuntimeError if a weight is missing."""
        copied, self._copied = self._copied, {}
        names = {entry.name for bucket in buckets for entry in bucket}
        if transfer != self._transfer or names != copied.keys():
            raise RuntimeError(f"version {version} was not copied completely")
        await self._publish(version, lambda: copied, keep_cache)

    async def load(self, version: int, buckets: Sequence[Bucket], *flats: np.ndarray) -> None:
        """Take a version from Ray's object store."""
        await self._publish(version, lambda: read_objects(flats, buckets), False)

    async def _publish(self, version: int, weights: Callable[[], Mapping[str, Tensor]], keep_cache: bool) -> None:
        engine = self._engine
        assert engine is not None  # noqa: S101  it was opened
        self._receiving += 1
        try:
            await asyncio.to_thread(lambda: engine.publish(weights(), version, keep_cache=keep_cache))
        except EngineFailure:
            self._leave_if_dead()
            raise
        finally:
            self._receiving -= 1
        self._has_weights.set()

    async def close(self) -> None:
        """Stop the server of this worker, if it has one, at the end of the run."""
        if self._sampler is not None:
            self._sampler.cancel()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop)

    def _leave_if_dead(self) -> None:
        """End this worker if its server is lost: Ray restarts it, and its episodes are asked again."""
        if self._engine is not None and not self._engine.is_alive:
            self._engine.stop()
            ray_client.leave("the server of this rollout worker is lost; the worker restarts with a new one")

    async def _sample_states(self) -> None:
        """Sum the seconds in each state, sampled at short intervals, and notice the loss of the server."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._leave_if_dead()
            now = time.monotonic()
            self._usage.seconds[self._state()] += now - before
            before = now

    def _state(self) -> str:
        assert self._agent is not None  # noqa: S101  states are sampled from then on
        if not self._has_weights.is_set() or (self._receiving and not self._running):
            return WEIGHTS
        if not self._running:
            return IDLE
        return SEARCHING if self._agent.tools.searches.running >= self._running else BUSY


class _UsageMeter:
    """Turns the cumulative counters of a worker into differences."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stats, self._searches = EngineStats(), Usage()
        self._tools: dict[str, Usage] = {}

    def take(self, agent: Agent, stats: EngineStats) -> WorkerUsage:
        """Return what happened since the last call."""
        tools = agent.tools
        usage = WorkerUsage(
            difference(stats, self._stats),
            difference(tools.searches, self._searches),
            {name: difference(each, self._tools.get(name, Usage())) for name, each in tools.usage.items()},
            dict(self.seconds),
        )
        self.seconds.clear()
        add(self._stats, usage.stats)
        add(self._searches, usage.searches)
        for name, each in usage.tools.items():
            add(self._tools.setdefault(name, Usage()), each)
        return usage
