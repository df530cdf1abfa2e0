"""Episodes on rollout workers: dispatch to the least loaded worker, and asking again when a worker is lost."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.cluster import ray_client
from sleuth.cluster.accounts import Accounts
from sleuth.cluster.actor import Failure
from sleuth.cluster.pool import Member, WorkerPool
from sleuth.cluster.worker import Reply, WorkerUsage, add
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.errors import TrainingStopped
from sleuth.records import Trajectory
from sleuth.train.episodes import EpisodeRunner
from sleuth.train.guards import RESUME

EPISODES = "episodes"
TREE_HOMES = 4096  # questions
POLL_SECONDS = 0.1  # between two looks for a worker that other callers have freed, or that Ray has restarted


@dataclass(slots=True)
class UsageTotals:
    """What the workers did for this process: counters that only grow, and the time and episodes of each worker."""

    stats: EngineStats = field(default_factory=EngineStats)
    workers: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, usage: WorkerUsage, tools: Toolbox, worker: int) -> None:
        """Add a worker's usage; tool counts go to the toolbox, where the sampler of a run reads them."""
        add(self.stats, usage.stats)
        add(tools.searches, usage.searches)
        for name, each in usage.tools.items():
            add(tools.usage[name], each)
        self.workers[worker].update({**usage.seconds, EPISODES: 1})  # a Counter adds

    def collect_workers(self) -> dict[int, Counter[str]]:
        """Return seconds by state and finished episodes of each worker, by its number, since the last call."""
        workers, self.workers = self.workers, defaultdict(Counter)
        return dict(workers)


class RayEpisodes:
    """EpisodeRunner on the workers of a pool; an episode does not depend on the worker that runs it."""

    def __init__(self, pool: WorkerPool, tools: Toolbox, patience: float) -> None:
        self.pool, self.accounts, self.totals = pool, Accounts(), UsageTotals()
        # The branches of a tree come in a later call than its first episode, whose pages are in one worker's cache.
        self.tree_homes: dict[tuple[int, str], Member] = {}
        self._tools, self._patience = tools, patience

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        call = _Call(self, tasks)
        try:
            return await call.run()
        finally:
            call.cancel()

    def receive(self, reply: Reply, worker: int) -> Trajectory | None:
        """Account for a worker's reply; None if its attempt was replaced. Raises the error of a user's function."""
        if not self.accounts.finish(reply.attempt):
            return None
        self.totals.add(reply.usage, self._tools, worker)
        if isinstance(reply.trajectory, Failure):
            reply.trajectory.reraise()
        return reply.trajectory

    def require_workers(self) -> None:
        """Raise TrainingStopped if no worker has been up for too long."""
        if (seconds := self.pool.seconds_down) > self._patience:
            raise TrainingStopped(
                f"no rollout worker has been available for {seconds:.0f} s (cluster.patience = {self._patience:g}); "
                f"{RESUME}"
            )


@dataclass(slots=True)
class _Running:
    """An episode in flight."""

    position: int
    attempt: int
    member: Member
    work: "asyncio.Task[None]"


class _Call:
    """One call of `run`: the tasks that wait, and those in flight."""

    def __init__(self, episodes: RayEpisodes, tasks: Sequence[Task]) -> None:
        self._episodes, self._tasks = episodes, tasks
        self._waiting = deque((position, episodes.accounts.ask()) for position in range(len(tasks)))
        self._running: dict[int, _Running] = {}
        self._ended: asyncio.Queue[tuple[int, Reply | BaseException]] = asyncio.Queue()
        # The samples of a question share their prompt in the cache of one worker.
        self._homes: dict[tuple[int, str], Member] = {}

    async def run(self) -> list[Trajectory]:
        finished: dict[int, Trajectory] = {}
        while len(finished) < len(self._tasks):
            self._start_waiting()
            try:
                async with asyncio.timeout(POLL_SECONDS if self._waiting else None):
                    position, result = await self._ended.get()
            except TimeoutError:
                self._episodes.require_workers()
                continue
            running = self._running.pop(position)
            self._episodes.pool.release(running.member)
            if isinstance(result, Reply):
                if (trajectory := self._episodes.receive(result, running.member.number)) is not None:
                    finished[position] = trajectory
            elif ray_client.is_lost(result):
                self._episodes.pool.mark_down(running.member)
                self._waiting.appendleft((position, self._episodes.accounts.ask_again(running.attempt)))
            else:
                raise result
        return [finished[position] for position in range(len(self._tasks))]

    def cancel(self) -> None:
        """Give up what has not finished."""
        for running in self._running.values():
            running.work.cancel()
            self._episodes.pool.release(running.member)
            self._episodes.accounts.cancel(running.attempt)
        for _, attempt in self._waiting:
            self._episodes.accounts.cancel(attempt)
        self._running, self._waiting = {}, deque()

    def _start_waiting(self) -> None:
        while self._waiting:
            position, attempt = self._waiting[0]
            task = self._tasks[position]
            key = (task.group, task.question.id)
            homes = self._homes if task.branch is None else self._episodes.tree_homes
            member = self._episodes.pool.claim(homes.get(key))
            if member is None:
                return
            self._waiting.popleft()
            homes[key] = member
            if len(homes) > TREE_HOMES and homes is not self._homes:
                del homes[next(iter(homes))]
            work = asyncio.create_task(self._ask(member, position, attempt))
            self._running[position] = _Running(position, attempt, member, work)

    async def _ask(self, member: Member, position: int, attempt: int) -> None:
        ref = member.handle.run.remote(attempt, self._tasks[position], position)
        try:
            self._ended.put_nowait((position, await ref))
        except asyncio.CancelledError:
            ray_client.cancel(ref)
            raise
        except Exception as error:  # handled by `run`
            self._ended.put_nowait((position, error))


@dataclass(frozen=True, slots=True)
class ClusterAgent(Agent):
    """An agent whose episodes run on the workers; prompts and settings are those of the run."""

    episodes: EpisodeRunner | None = None

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:  # noqa: ARG002
        assert self.episodes is not None  # noqa: S101  given by the backend
        (trajectory,) = await self.episodes.run([task])
        return trajectory
