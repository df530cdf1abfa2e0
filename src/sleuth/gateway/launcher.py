"""Launchers start an outside agent for each attempt; this one calls a Python function in the process of the trainer."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from starlette.routing import BaseRoute

from sleuth.agent.task import Task
from sleuth.config.hooks import describe_exception, is_async
from sleuth.errors import FunctionFailed, SleuthError
from sleuth.gateway.agent_function import load_agent
from sleuth.gateway.endpoint import Endpoint
from sleuth.retrieval.backends import in_daemon_thread

Result = TypeVar("Result")


class AttemptLost(SleuthError):
    """The process that ran an attempt vanished; the attempt is repeated once, in a new rollout."""


class Launcher(Protocol):
    """Starts the agent for each attempt; `routes` are served by the gateway in its own thread, below /worker/."""

    @property
    def routes(self) -> Sequence[BaseRoute]: ...

    def start(self, url: str) -> None:
        """Called once, when the gateway accepts requests at `url`."""

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> object:
        """Run the agent for at most `deadline` seconds and return what it returned: a number, a Score or None.

        Raises FunctionFailed if the agent fails or is too slow, AttemptLost if its process vanished. Called in the
        event loop of the engine; if the call is cancelled, the agent is stopped.
        """

    def close(self) -> None:
        """Stop all agents that still run."""


def describe_deadline(spec: str, deadline: float) -> str:
    return f"{spec!r} did not return within {deadline:g} s (agent.deadline)"


class LoopThread:
    """An event loop in a daemon thread; closing it cancels its tasks."""

    def __init__(self, name: str) -> None:
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._closed = asyncio.Event()
        threading.Thread(target=asyncio.run, args=(self._run(),), name=name, daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop.result())

    def close(self) -> None:
        self._loop.result().call_soon_threadsafe(self._closed.set)

    async def _run(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        await self._closed.wait()


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

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> object:
        work = self._thread.submit(self._call(task, endpoint))
        try:
            async with asyncio.timeout(deadline) as limit:
                return await asyncio.wrap_future(work)
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            sentence = describe_deadline(self._spec, deadline) if late else describe_exception(self._spec, error)
            raise FunctionFailed(sentence) from error

    async def _call(self, task: Task, endpoint: Endpoint) -> object:
        if is_async(self._function):
            return await self._function(task, endpoint)
        result = await in_daemon_thread(lambda: self._function(task, endpoint))
        return await result if isawaitable(result) else result

    def close(self) -> None:
        self._thread.close()
