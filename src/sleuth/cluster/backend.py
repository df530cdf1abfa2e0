"""The rollout backend of a trainer rank: connects its learner to the rollout workers of the cluster."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth.agent import methods, protocol
from sleuth.agent.loading import SEARCHES
from sleuth.agent.tools import Tool, Toolbox
from sleuth.cluster import ray_client
from sleuth.cluster.actor import Failure
from sleuth.cluster.engine import RayEngine
from sleuth.cluster.episodes import EPISODES, ClusterAgent, RayEpisodes
from sleuth.cluster.placement import RETRIEVER
from sleuth.cluster.pool import Member, WorkerPool
from sleuth.cluster.revival import Revival
from sleuth.cluster.weights import ClusterWeights, WeightSender, open_worker
from sleuth.cluster.worker import STATES
from sleuth.config.tree import Config
from sleuth.engines.build import EXCHANGE
from sleuth.gateway.outside import build_runner
from sleuth.retrieval.retriever import NullRetriever
from sleuth.runs.run import Run
from sleuth.train.backend import RolloutParts
from sleuth.train.episodes import LocalEpisodes
from sleuth.train.observer import RunObserver
from sleuth.train.publish import sent_dtype
from sleuth.train.ranks import Ranks
from sleuth.train.step import Learner

CLOSE_SECONDS = 60.0  # for the servers of the workers to stop


@dataclass(frozen=True, slots=True)
class RayBackend:
    """RolloutBackend over the workers that the driver started; `replicas` are opened before the workers."""

    members: Sequence[Member]
    replicas: Sequence[Any]

    def connect(
        self, config: Config, learner: Learner, run: Run, index: Path, tools: Sequence[Tool], observer: RunObserver
    ) -> RolloutParts:
        ranks = learner.ranks
        pool = WorkerPool(self.members, limit=config.concurrency, first=ranks.rank * len(self.members) // ranks.world)
        toolbox = Toolbox(NullRetriever(), config.retrieval.k, tools=tuple(tools))
        episodes = RayEpisodes(pool, toolbox, config.cluster.patience)
        weights = ClusterWeights(dict(learner.policy.parameters()), sent_dtype(config, learner.policy))
        if ranks.rank == 0:
            shutil.rmtree(run.path / EXCHANGE, ignore_errors=True)  # weights left by workers that were killed
            self._open(observer)
            weights.sender = WeightSender(pool, weights.buckets, learner.policy.device)
            weights.sender.require_reachable()
        ranks.barrier("the rollout workers")
        for member in self.members:
            pool.mark_up(member)
        revival = Revival(pool, lambda member: _restore(member, weights, pool), observer.log)
        revival.start(self.members)
        if ranks.rank == 0:  # one rank suffices, and a second one could kill the restarted process
            actors = {member.name: member.handle for member in self.members}
            actors |= {f"{RETRIEVER} {number}": replica for number, replica in enumerate(self.replicas)}
            revival.kill_silent(actors, config.cluster.silence)

        def close() -> None:
            revival.stop()
            if ranks.rank == 0 and config.engine.is_server:  # embedded engines end with their workers
                ray_client.wait_all([member.handle.close.remote() for member in pool.current_members()], CLOSE_SECONDS)

        engine = RayEngine(episodes, close)
        observer.log(
            f"rollout workers: {len(self.members)}, at most {config.concurrency:,} episodes in flight on each: with "
            "the same seed this run may not be repeatable bit for bit"
        )
        metrics = ClusterMetrics(episodes, weights, revival, ranks, run).collect
        if config.agent.is_outside:
            outside = build_runner(config, engine, learner.policy.tokens, index, run.path / SEARCHES, tools)
            local = LocalEpisodes(outside, config.concurrency, config.train.samples)
            return RolloutParts(engine, weights, outside, local, config.concurrency, metrics)
        grammar = protocol.make_protocol(config.agent.protocol, learner.policy.tokens, toolbox.tools)
        method = methods.make_method(config.agent)
        agent = ClusterAgent(engine, learner.policy.tokens, grammar, toolbox, config.agent, method, episodes)
        return RolloutParts(engine, weights, agent, episodes, config.concurrency * len(self.members), metrics)

    def _open(self, observer: RunObserver) -> None:
        """Let the replicas open the index, then the workers the model; raises their errors."""
        observer.begin("opening the rollout workers", len(self.members) + len(self.replicas))
        opened = ray_client.get([replica.open.remote() for replica in self.replicas])
        opened += ray_client.get([member.handle.open.remote(member.replicas, member.number) for member in self.members])
        for failure in opened:
            if isinstance(failure, Failure):
                failure.reraise()
            observer.advance()


def _restore(member: Member, weights: ClusterWeights, pool: WorkerPool) -> None:
    """Bring a restarted worker back: rank 0 gives it model and weights, other ranks wait for that."""
    if weights.sender is None:
        ray_client.get(member.handle.ready.remote())
        pool.mark_up(member)
        return
    open_worker(member)  # before the sender is locked, because it takes long
    weights.sender.catch_up(member)


def _worker_row(member: Member, used: Mapping[str, float]) -> dict[str, Any]:
    figures = {name: round(used.get(name, 0), 3) for name in (*STATES, EPISODES)}
    return {"number": member.number, "node": member.greeting.address, **figures}


@dataclass(slots=True)
class ClusterMetrics:
    """Metrics of the workers under `cluster/`, over all ranks, and the record of each worker in the run folder."""

    episodes: RayEpisodes
    weights: ClusterWeights
    revival: Revival
    ranks: Ranks
    run: Run
    _seen: tuple[int, int] = (0, 0)

    def collect(self, step: int) -> Mapping[str, float]:
        """Return the metrics since the last call, and record what each worker did until this step; collective."""
        counts, workers = self.episodes.accounts.collect(), self.episodes.totals.collect_workers()
        every = self.ranks.gather([(counts, workers)], "the metrics of the workers")
        gathered = [each for theirs in every for each in theirs]
        found = {f"cluster/{name}": sum(theirs[name] for theirs, _ in gathered) for name in counts}
        merged = {
            member: sum((used.get(member.number, Counter()) for _, used in gathered), Counter[str]())
            for member in self.episodes.pool.members
        }
        total = sum(merged.values(), Counter[str]())
        if whole := sum(total[state] for state in STATES):
            found |= {f"cluster/{state}": total[state] / whole for state in STATES}
        if self.ranks.rank == 0:
            self.run.append_workers(step, [_worker_row(member, used) for member, used in merged.items()])
        now = (self.revival.lost, self.revival.restarted)
        lost, restarted = (here - before for here, before in zip(now, self._seen, strict=True))
        self._seen = now
        found |= {"cluster/workers_lost": float(lost), "cluster/workers_restarted": float(restarted)}
        found["cluster/workers"] = float(len(self.episodes.pool.current_members()))
        return found | (self.weights.sender.collect() if self.weights.sender is not None else {})
