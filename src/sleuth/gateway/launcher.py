"""Launchers start an outside agent for each attempt; this one calls a Python function in the process of the trainer."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from sleuth.agent.task import Task
from sleuth.errors import FunctionFailed, SleuthError
from sleuth.gateway.agent_function import LoopThread, call_agent, load_agent
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Score
from sleuth.retrieval.backends import in_daemon_thread


class AttemptLost(SleuthError):
    """The process that ran an attempt vanished; the attempt is repeated once, in a new rollout."""


class Launcher(Protocol):
    """Starts the agent for each attempt; `routes` are served by the gateway in its own thread, below /worker/."""

    @property
    def routes(self) -> Sequence[BaseRoute]: ...

    def start(self, url: str) -> None:
        """Called once, when the gateway accepts requests at `url`."""

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        """Run the agent for at most `deadline` seconds and return its reward, if it returned one.

        Raises FunctionFailed if the agent fails or is too slow, AttemptLost if its process vanished. Called in the
        event loop of the engine; if the call is cancelled, the agent is stopped.
        """

    def close(self) -> None:
        """Stop all agents that still run."""


def describe_deadline(spec: str, deadline: float) -> str:
    return f"{spec!r} did not return within {deadline:g} s (agent.deadline)"


class FunctionLauncher:
    """Calls a function: an async one in an event loop for agents, a plain one in a thread for each attempt.

    Agents have their own loop because an async function may block, and the engine must go on meanwhile.
    """

    def __init__(self, spec: str) -> None:
        self._spec, self._function = spec, load_agent(spec)
        self._thread = LoopThread("agents")
        self.routes: Sequence[BaseRoute] = ()

    def start(self, url: str) -> None:
        """No-op: the endpoint of an attempt has the address."""

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        work = self._thread.submit(call_agent(self._spec, self._function, task, endpoint, in_daemon_thread))
        try:
            async with asyncio.timeout(deadline):
                return await asyncio.wrap_future(work)
        except TimeoutError:
            raise FunctionFailed(describe_deadline(self._spec, deadline)) from None

    def close(self) -> None:
        self._thread.close()
