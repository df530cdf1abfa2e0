"""The gateway in Python: a model behind OpenAI-compatible endpoints; calls become trajectories for any trainer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sleuth.agent.loading import AgentOptions, build_toolbox, describe_agent, require_search
from sleuth.agent.task import Task
from sleuth.api import background
from sleuth.api.agent import ASKED, AnyIndex, Settings, as_task, index_name, setting_lines
from sleuth.api.console import quiet_transformers
from sleuth.api.run import Run
from sleuth.config.agent import REMOTE
from sleuth.engines.base import Session
from sleuth.engines.build import load_engine
from sleuth.gateway import server
from sleuth.gateway.agent_function import as_score
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.outside import build_gateway, conclude, set_reward
from sleuth.gateway.rollout import Policy, Rollout
from sleuth.records import Question, Score, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


class Gateway:
    """Serves a model to agents that use any OpenAI or Anthropic client; `open` a rollout for each attempt.

    `model` is a model folder, a hub name or a run. `index` answers the searches of `endpoint.search`. `settings` are
    those of agent (context_tokens, turn_tokens, turns, deadline), retrieval, engine and gateway.
    """

    def __init__(self, model: str | Path | Run, index: AnyIndex | None = None, *, settings: Settings = ()) -> None:
        name = str(model.path if isinstance(model, Run) else model)
        options = AgentOptions((*setting_lines(settings), f'agent.run="{REMOTE}"'), index_name(index))
        spec = describe_agent(name, options, ASKED)
        config = spec.config
        require_search(config)
        tools = build_toolbox(config, spec.index, spec.recording) if config.has_index else None
        with quiet_transformers():
            engine, tokens = load_engine(config, spec.weights)
        self._policy, self._version, self._opened = Policy.of(engine, tokens, config.agent), 0, 0
        self._sessions: dict[str, AbstractContextManager[Session]] = {}  # of open rollouts, by id
        self._server = build_gateway(config, tools)
        self._server.__enter__()

    @property
    def url(self) -> str:
        """The address of the server; a rollout has its own endpoint below it."""
        return self._server.url

    def open(self, task: Task | Question | str, *, temperature: float = 1.0, seed: int = 0) -> "GatewayRollout":
        """Begin an attempt; `temperature` and `seed` apply to a question, and to calls that set none."""
        return background.run(self._open(task, temperature, seed))

    async def open_async(
        self, task: Task | Question | str, *, temperature: float = 1.0, seed: int = 0
    ) -> "GatewayRollout":
        """Like `open`, for async code."""
        return await background.run_async(self._open(task, temperature, seed))

    def publish(self, weights: "Mapping[str, Tensor] | None" = None) -> int:
        """Switch to new weights, named as in the model's state dict, and return their version.

        Calls in flight continue with the new weights; every token carries the version that sampled it.
        """
        self._policy.engine.publish(weights, self._version + 1)
        self._version += 1
        return self._version

    def close(self) -> None:
        """Stop the server and the engine; rollouts that are still open are lost."""
        self._server.__exit__()
        background.run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self, task: Task | Question | str, temperature: float, seed: int) -> "GatewayRollout":
        task = task if isinstance(task, Task) else as_task(task, temperature, seed)
        self._opened += 1
        session = self._policy.engine.session(self._opened)
        rollout = Rollout(self._policy, task, session.__enter__())
        self._sessions[rollout.id] = session
        return GatewayRollout(rollout, self._server.open(rollout), self._end)

    async def _close(self) -> None:
        for rollout_id in list(self._sessions):
            self._exit_session(rollout_id)
        await self._policy.engine.close()

    def _end(self, rollout_id: str) -> server.OpenRollout:
        attempt = self._server.close(rollout_id)
        self._exit_session(rollout_id)
        return attempt

    def _exit_session(self, rollout_id: str) -> None:
        self._sessions.pop(rollout_id).__exit__(None, None, None)


class GatewayRollout:
    """One attempt: pass `endpoint` to the agent, then `finish` to get the trajectory."""

    def __init__(self, rollout: Rollout, endpoint: Endpoint, end: Callable[[str], server.OpenRollout]) -> None:
        self.endpoint = endpoint
        self._rollout, self._end = rollout, end

    @property
    def task(self) -> Task:
        return self._rollout.task

    def finish(self, reward: float | Score | None = None, *, failure: str | None = None) -> Trajectory:
        """End the attempt; its segments have token ids, the mask of sampled tokens, and their logprobs and versions.

        `reward` is for an agent that posts none: with both, FunctionFailed is raised. `failure` says why the attempt is
        unusable. Raises RuntimeError if the attempt was finished before, or the gateway was closed.
        """
        return background.run(self._finish(reward, failure))

    async def finish_async(self, reward: float | Score | None = None, *, failure: str | None = None) -> Trajectory:
        """Like `finish`, for async code."""
        return await background.run_async(self._finish(reward, failure))

    async def _finish(self, reward: float | Score | None, failure: str | None) -> Trajectory:
        if not self._rollout.closed:
            set_reward(self._rollout, as_score("finish", reward), "the caller of finish")
        return conclude(self._end(self._rollout.id), failure, "the agent")
