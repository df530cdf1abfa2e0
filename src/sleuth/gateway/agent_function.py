"""The function behind `agent.run` and its calls; imports nothing heavy, because workers need it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from inspect import isawaitable
from math import isfinite
from typing import Any, SupportsFloat, TypeVar

from sleuth.agent.task import Task
from sleuth.config.hooks import Contract, describe_exception, import_function, is_async
from sleuth.errors import FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Score

CONTRACT = Contract(("task", "llm"), "a number, a Reward or None", is_async=None)

VERIFIERS = "verifiers:"

AgentFunction = Callable[[Task, Endpoint], Any]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a plain function in a thread
Result = TypeVar("Result")


def load_agent(spec: str) -> AgentFunction:
    """Import the agent of `agent.run`; raises ConfigError if it cannot be called as run(task, llm)."""
    if spec.startswith(VERIFIERS):
        from sleuth.gateway.verifiers_env import EnvironmentAgent  # needs the extra of that name

        return EnvironmentAgent(spec.removeprefix(VERIFIERS))
    return import_function(spec, CONTRACT)


async def call_agent(
    spec: str, function: AgentFunction, task: Task, endpoint: Endpoint, in_thread: InThread
) -> Score | None:
    """Call the agent, a plain function in a thread, and return its reward; raises FunctionFailed if it fails."""
    call = partial(function, task, endpoint)
    with agent_failures(spec):
        result = call() if is_async(function) else await in_thread(call)
    return await as_score_async(spec, result)


async def as_score_async(spec: str, returned: object) -> Score | None:
    """Return the reward that an agent returned, or that its coroutine returns; raises FunctionFailed if it fails."""

    async def finish(work: Awaitable[object]) -> object:
        with agent_failures(spec):
            return await work

    with agent_failures(spec):
        # In a task of its own, so that an agent that cancels itself differs from a caller that cancels the attempt.
        return as_score(spec, await asyncio.create_task(finish(returned)) if isawaitable(returned) else returned)


@contextmanager
def agent_failures(spec: str) -> Iterator[None]:
    """Raise FunctionFailed for whatever the agent raises, SystemExit included; a cancellation of this task passes."""
    try:
        yield
    except (FunctionFailed, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        raise FunctionFailed(describe_exception(spec, error)) from error


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        return False
    return task is not None and task.cancelling() > 0


class LoopThread:
    """An event loop for agents in a daemon thread; closing it cancels its tasks."""

    def __init__(self, name: str) -> None:
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop.result())

    def close(self) -> None:
        self._closed = True
        loop = self._loop.result()
        loop.call_soon_threadsafe(loop.stop)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            self._loop.set_result(loop)
            while not self._closed:
                # asyncio ends the loop if a task that an agent has started raises one of these.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()


def as_score(spec: str, value: object) -> Score | None:
    """Return the reward that an agent returned, or None; raises FunctionFailed if it is not a reward."""
    match value:
        case None:
            return None
        case Score(total, parts, turns):
            named = {name: _number(spec, each) for name, each in parts.items()}
            return Score(_number(spec, total), named, tuple(_number(spec, each) for each in turns))
    return Score(_number(spec, value))


def _number(spec: str, value: object) -> float:
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        shown = f"{value!r:.60} (type {type(value).__name__})"
        raise FunctionFailed(f"{spec!r} returned {shown}; expected {CONTRACT.returns}")
    if not isfinite(number := float(value)):
        raise FunctionFailed(f"{spec!r} returned {number}; expected a finite number")
    return number
