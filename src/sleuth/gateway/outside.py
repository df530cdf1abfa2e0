"""Agents that were not written for Sleuth, as runners: they call the policy through the gateway."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.routing import BaseRoute

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent, Runner
from sleuth.agent.loading import AgentSpec, build_agent, build_toolbox, require_search
from sleuth.agent.task import Task
from sleuth.agent.tools import Tool, Toolbox
from sleuth.config.agent import REMOTE, AgentConfig
from sleuth.config.hooks import IMPORT
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.build import load_engine
from sleuth.errors import ConfigError, FunctionFailed, SearchUnavailable
from sleuth.gateway.agent_function import load_agent
from sleuth.gateway.api import ApiError
from sleuth.gateway.calls import count_forks
from sleuth.gateway.command import CommandLauncher, split_command
from sleuth.gateway.frozen_model import FrozenModel
from sleuth.gateway.launcher import AttemptLost, FunctionLauncher, Launcher
from sleuth.gateway.rollout import CallTimes, Policy, Rollout
from sleuth.gateway.server import Gateway, GatewayLimits, OpenRollout
from sleuth.gateway.workers import LocalWorkers, RemoteWorkers, worker_token
from sleuth.model.tokens import Tokens
from sleuth.records import Question, Score, StopReason, Trajectory


@dataclass(slots=True)
class OutsideCounts:
    """What the attempts of an outside agent did, since the start."""

    attempts: int = 0
    calls: int = 0
    segments: int = 0
    forks: int = 0
    rewritten: int = 0
    helper_calls: int = 0
    failures: int = 0

    def add(self, rollout: Rollout, trajectory: Trajectory) -> None:
        self.attempts += 1
        self.calls += rollout.counts.calls
        self.segments += len(trajectory.segments)
        self.forks += count_forks([segment.role for segment in trajectory.segments])
        self.rewritten += rollout.counts.rewritten
        self.helper_calls += rollout.counts.helper_calls
        self.failures += not trajectory.stop.usable


class OutsideAgent:
    """Runs each task with an agent that calls the policy through a gateway; enter it to start the gateway."""

    def __init__(
        self, engine: Engine, tokens: Tokens, tools: Toolbox, config: AgentConfig, gateway: Gateway, launcher: Launcher
    ) -> None:
        self.engine, self.tokens, self.tools, self.config = engine, tokens, tools, config
        self.gateway, self.counts, self.times = gateway, OutsideCounts(), CallTimes()
        self._launcher, self._policy = launcher, Policy.of(engine, tokens, config)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.gateway)
        self._stack.enter_context(closing(self._launcher))
        self._launcher.start(self.gateway.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:  # noqa: ARG002
        """Run an attempt to its end; if its process vanishes, repeat it once in a new rollout."""
        with self.engine.session(order) as session:
            rollout = Rollout(self._policy, task, session)
            try:
                trajectory = await self._attempt(rollout)
            except AttemptLost:
                rollout = Rollout(self._policy, task, session)
                try:
                    trajectory = await self._attempt(rollout)
                except AttemptLost as lost:
                    trajectory = rollout.finish(StopReason.FUNCTION_FAILED, f"{lost}, twice")
        self.counts.add(rollout, trajectory)
        self.times.add(rollout.times)
        return trajectory

    async def _attempt(self, rollout: Rollout) -> Trajectory:
        failure: str | None = None
        endpoint = self.gateway.open(rollout)
        try:
            score = await self._launcher.launch(rollout.task, endpoint, self.config.deadline)
            set_reward(rollout, score, self.config.source)
        except FunctionFailed as error:
            failure = str(error)
        finally:
            attempt = self.gateway.close(rollout.id)
        return conclude(attempt, failure, self.config.source)


def set_reward(rollout: Rollout, score: Score | None, source: str) -> None:
    """Set the reward that `source` returned, if any; raises FunctionFailed if the agent has also posted one."""
    if score is None:
        return
    if rollout.reward is not None:
        raise FunctionFailed(f"{source} returned a reward and posted one; do one of the two")
    try:
        rollout.set_reward(score)
    except ApiError as error:
        raise FunctionFailed(f"{source} returned a bad reward: {error}") from error


def conclude(attempt: OpenRollout, failure: str | None, source: str) -> Trajectory:
    """End a closed attempt and return its trajectory; `failure` says why the agent `source` failed, if it did."""
    rollout, search_failure = attempt.rollout, attempt.search_failure
    rollout.close()
    if isinstance(search_failure, SearchUnavailable):
        return rollout.finish(StopReason.SEARCH_UNAVAILABLE, str(search_failure))
    if search_failure is not None:
        raise search_failure
    if rollout.failure is not None:
        return rollout.finish(StopReason.ENGINE_FAILED, rollout.failure)
    if not rollout.counts.calls:
        failure = failure or f"{source} did not call the policy; send its requests to llm.base_url"
        return rollout.finish(StopReason.FUNCTION_FAILED, failure)
    if failure is None:
        return rollout.finish(StopReason.ANSWERED)
    # If the policy has used up its context or its calls, and has got no reply since, it is the cause of the failure.
    return rollout.finish(rollout.limit or StopReason.FUNCTION_FAILED, failure)


def check_agent(config: AgentConfig) -> None:
    """Raise ConfigError if an outside agent cannot be imported or started; call this before loading a model."""
    if config.command is not None:
        split_command(config.command)
    if config.run is not None and config.run.startswith(IMPORT):
        load_agent(config.run)


def build_launcher(config: Config, folder: Path | None) -> Launcher:
    """Build the launcher of the configured agent; `folder` keeps the token of remote workers."""
    agent = config.agent
    if agent.command is not None:
        return CommandLauncher(agent.command, config.concurrency)
    if agent.run == REMOTE:
        return RemoteWorkers(worker_token(folder))
    if agent.workers:
        return LocalWorkers(str(agent.run), agent.workers)
    return FunctionLauncher(str(agent.run))


def build_gateway(config: Config, tools: Toolbox | None, routes: Sequence[BaseRoute] = ()) -> Gateway:
    """Build the configured gateway; `tools` answers searches, `routes` are served too."""
    seconds = config.agent.deadline
    return Gateway(
        config.gateway.host,
        config.gateway.port,
        tools=tools,
        helper=FrozenModel.of(config.gateway.helper, seconds),
        limits=GatewayLimits(call_seconds=seconds),
        routes=routes,
    )


def build_runner(
    config: Config,
    engine: Engine,
    tokens: Tokens,
    index: Path,
    recording: Path,
    tools: Sequence[Tool] | None = None,
) -> Agent | OutsideAgent:
    """Build the configured agent on an engine: Sleuth's own, or an outside agent behind a gateway."""
    if not config.agent.is_outside:
        return build_agent(config, engine, tokens, index, recording, tools)
    toolbox = build_toolbox(config, index, recording, tools)
    launcher = build_launcher(config, recording.parent)
    gateway = build_gateway(config, toolbox if config.has_index else None, launcher.routes)
    return OutsideAgent(engine, tokens, toolbox, config.agent, gateway, launcher)


def load_runner(spec: AgentSpec, shots: Sequence[Question] = ()) -> Agent | OutsideAgent:
    """Load the weights of a described agent and build it."""
    if not spec.config.agent.is_outside:
        return spec.load(shots)
    if shots:
        raise ConfigError(f"--shots has no effect with {spec.config.agent.source}, whose prompts are its own")
    check_agent(spec.config.agent)
    require_search(spec.config)
    engine, tokens = load_engine(spec.config, spec.weights)
    return build_runner(spec.config, engine, tokens, spec.index, spec.recording)


def running(agent: Runner) -> AbstractContextManager[object]:
    """Return the context in which an agent can run: the gateway of an outside agent."""
    return agent if isinstance(agent, OutsideAgent) else nullcontext()
