"""The rollout backend: engine, publisher, agent and episodes of a run, in this process or elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sleuth.agent.episode import Agent
from sleuth.agent.loading import SEARCHES
from sleuth.agent.tools import Tool
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.build import Lockstep
from sleuth.gateway.outside import OutsideAgent, build_runner
from sleuth.runs.run import Run
from sleuth.train.episodes import EpisodeRunner, LocalEpisodes
from sleuth.train.observer import RunObserver
from sleuth.train.publish import Publisher, SentWeights, build_engine
from sleuth.train.step import Learner


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """What the training loop needs for rollouts; `metrics` of a step is collective and resets what it returns."""

    engine: Engine
    publisher: Publisher
    agent: Agent | OutsideAgent
    episodes: EpisodeRunner
    concurrency: int
    metrics: Callable[[int], Mapping[str, float]] = lambda _: {}


class RolloutBackend(Protocol):
    """Builds the rollout parts of a run."""

    def connect(
        self, config: Config, learner: Learner, run: Run, index: Path, tools: Sequence[Tool], observer: RunObserver
    ) -> RolloutParts:
        """Build the parts for a learner; `index` is the run's index folder."""
        ...


class LocalBackend:
    """Rollouts in this process, or on servers that it is connected to."""

    def connect(
        self, config: Config, learner: Learner, run: Run, index: Path, tools: Sequence[Tool], observer: RunObserver
    ) -> RolloutParts:
        engine, publisher = build_engine(config, learner, run.path)
        observer.log(Lockstep.resolve(config, learner.policy.device.type).line(config.concurrency))
        agent = build_runner(config, engine, learner.policy.tokens, index, run.path / SEARCHES, tools)
        episodes = LocalEpisodes(agent, config.concurrency, config.train.samples)
        parts = RolloutParts(engine, publisher, agent, episodes, config.concurrency)
        if isinstance(publisher, SentWeights):
            return replace(parts, metrics=lambda _: publisher.totals.collect())
        return parts


LOCAL = LocalBackend()
