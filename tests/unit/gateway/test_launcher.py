"""Functions as agents: plain and async, failures, deadlines, and agents that block."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from threading import Event

import pytest

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import FunctionLauncher
from sleuth.records import Question, Score

TASK = Task(Question("q1", "Where?", ("Oslo",), "test"))
ENDPOINT = Endpoint("http://127.0.0.1:1/rollout/a/v1", "key")

Launch = Callable[..., object]


def plain(task: Task, llm: Endpoint) -> float:
    assert (task.question.id, llm.api_key) == ("q1", "key")
    return 0.5


async def asynchronous(task: Task, llm: Endpoint) -> float:
    await asyncio.sleep(0)
    return plain(task, llm)


def failing(task: Task, llm: Endpoint) -> None:
    raise KeyError("no such tool")


def quitting(task: Task, llm: Endpoint) -> None:
    sys.exit("no key")


async def quitting_async(task: Task, llm: Endpoint) -> None:
    quitting(task, llm)


async def quitting_in_a_task(task: Task, llm: Endpoint) -> None:
    await asyncio.create_task(quitting_async(task, llm))


async def interrupted(task: Task, llm: Endpoint) -> None:
    raise KeyboardInterrupt


async def cancelled(task: Task, llm: Endpoint) -> None:
    raise asyncio.CancelledError("of a client")


async def cancelling_itself(task: Task, llm: Endpoint) -> None:
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    await asyncio.sleep(1)


async def timed_out(task: Task, llm: Endpoint) -> None:
    raise TimeoutError("of a client")


def sleeping(task: Task, llm: Endpoint) -> None:
    time.sleep(0.5)


async def blocking(task: Task, llm: Endpoint) -> float:
    time.sleep(0.2)  # noqa: ASYNC251  a blocking client inside an async function
    return 1.0


started, ended = Event(), Event()


async def patient(task: Task, llm: Endpoint) -> None:
    started.set()
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()


def strange(task: Task) -> None:
    """Takes no endpoint."""


wrapped = partial(asynchronous)


@pytest.fixture
def launch() -> Launch:
    def run(function: str, deadline: float = 5.0) -> object:
        with closing(FunctionLauncher(f"import:{__name__}.{function}")) as launcher:
            launcher.start("http://127.0.0.1:1")
            return asyncio.run(launcher.launch(TASK, ENDPOINT, deadline))

    return run


@pytest.mark.parametrize("function", ["plain", "asynchronous", "wrapped"])
def test_returns_the_reward_of_the_function(launch: Launch, function: str) -> None:
    assert launch(function) == Score(0.5)


def test_failure_names_function_error_and_line(launch: Launch) -> None:
    with pytest.raises(FunctionFailed, match=r"failing.*KeyError.*no such tool.*test_launcher.py:\d+"):
        launch("failing")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("quitting", "SystemExit: no key"),
        ("quitting_async", "SystemExit: no key"),
        ("quitting_in_a_task", "SystemExit: no key"),
        ("interrupted", "KeyboardInterrupt"),
        ("cancelled", "CancelledError: of a client"),
        ("cancelling_itself", "CancelledError"),
        ("timed_out", "TimeoutError: of a client"),
    ],
)
def test_agent_that_ends_its_task_ends_its_own_attempt_only(function: str, error: str) -> None:
    async def launch_twice() -> list[object]:
        attempts = [launcher.launch(TASK, ENDPOINT, 5.0) for _ in range(2)]
        at_once = await asyncio.gather(*attempts, return_exceptions=True)
        return [*at_once, *await asyncio.gather(launcher.launch(TASK, ENDPOINT, 5.0), return_exceptions=True)]

    with closing(FunctionLauncher(f"import:{__name__}.{function}")) as launcher:
        outcomes = asyncio.run(launch_twice())
    assert [type(outcome) for outcome in outcomes] == [FunctionFailed] * 3
    assert all(error in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize("function", ["sleeping", "blocking"])
def test_deadline_does_not_wait_for_the_function(launch: Launch, function: str) -> None:
    with pytest.raises(FunctionFailed, match=r"0.05 s.*agent.deadline"):
        launch(function, 0.05)


def test_loop_of_the_caller_runs_while_an_async_agent_blocks() -> None:
    async def count_ticks() -> tuple[object, int]:
        work, ticks = asyncio.create_task(launcher.launch(TASK, ENDPOINT, 5.0)), 0
        while not work.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return work.result(), ticks

    with closing(FunctionLauncher(f"import:{__name__}.blocking")) as launcher:
        launcher.start("http://127.0.0.1:1")
        result, ticks = asyncio.run(count_ticks())
    assert result == Score(1.0)
    assert ticks > 5


def test_wrong_signature_is_rejected_when_loaded() -> None:
    with pytest.raises(ConfigError, match=r"strange.*task, llm"):
        FunctionLauncher(f"import:{__name__}.strange")


def test_cancelled_launch_cancels_the_async_agent() -> None:
    async def cancel() -> None:
        work = asyncio.create_task(launcher.launch(TASK, ENDPOINT, 5.0))
        assert await asyncio.to_thread(started.wait, 5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await asyncio.to_thread(ended.wait, 5)

    with closing(FunctionLauncher(f"import:{__name__}.patient")) as launcher:
        launcher.start("http://127.0.0.1:1")
        asyncio.run(cancel())
