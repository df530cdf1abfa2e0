"""`python -m sleuth.gateway.worker` as a process, against a loopback gateway."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.errors import FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost
from sleuth.gateway.server import Gateway
from sleuth.gateway.task_queue import Timing
from sleuth.gateway.workers import RemoteWorkers
from sleuth.records import Question, Score

TOKEN = "secret"
QUICK = Timing(poll=1.0, heartbeat=0.1, silence=1.5)
HEAVY = ("torch", "transformers", "pydantic", "starlette", "fastapi", "typer", "numpy", "rich")


@contextmanager
def working(url: str, agent: str, *options: str, token: str = TOKEN) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "sleuth.gateway.worker", "--gateway", url, "--agent", agent, *options]
    environment = {**os.environ, "SLEUTH_GATEWAY_TOKEN": token, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def launch(workers: RemoteWorkers, text: str, deadline: float = 30.0) -> Awaitable[Score | None]:
    endpoint = Endpoint("http://elsewhere:1/rollout/a/v1", "7")
    return workers.launch(Task(Question("q", text, (), "test")), endpoint, deadline)


@contextmanager
def serve(workers: RemoteWorkers, port: int = 0) -> Iterator[str]:
    with Gateway(port=port, routes=workers.routes) as gateway:
        yield gateway.url


def play(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 (the state of another thread)
        await asyncio.sleep(0.01)


async def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, log = await asyncio.to_thread(process.communicate, timeout=30)
    return process.returncode, log


async def collect(*attempts: Awaitable[Score | None]) -> list[Any]:
    return await asyncio.gather(*attempts, return_exceptions=True)


@pytest.mark.parametrize("options", [(), ("--processes",)], ids=["threads", "processes"])
@pytest.mark.parametrize("function", ["plain", "run"])
def test_rewards_and_errors_come_back(agents: str, function: str, options: tuple[str, ...]) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, f"{agents}.{function}", *options) as process:
            texts = (
                "reward 0.5",
                "none",
                "raise x",
                "quit x",
                "cancel x",
                *(f"reward {number}" for number in range(40)),
            )
            first, none, error, left, cancelled, *others = await collect(*(launch(workers, text) for text in texts))
            assert (first, none) == (Score(0.5), None)
            assert isinstance(error, FunctionFailed)
            assert "ValueError: x" in str(error)
            assert "SystemExit" in str(left)
            assert "CancelledError: x" in str(cancelled)
            assert [score.total for score in others] == list(range(40))
            process.terminate()
            code, log = await ended(process)
            assert code == 0
            assert "connected" in log
            assert "reward 0.5" in log

    play(scene())


def test_attempts_run_at_the_same_time_up_to_the_concurrency(agents: str) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, f"{agents}.patient", "--concurrency", "3"):
            attempts = [asyncio.ensure_future(launch(workers, "0.3")) for _ in range(4)]
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.1)
            assert sorted(attempt.done() for attempt in attempts) == [False, True, True, True]
            assert await asyncio.gather(*attempts) == [Score(1.0)] * 4

    play(scene())


@pytest.mark.parametrize(
    ("agent", "token", "cause"),
    [(".run", "wrong", "SLEUTH_GATEWAY_TOKEN"), (".run", "", "SLEUTH_GATEWAY_TOKEN"), (".absent", TOKEN, "absent")],
)
def test_what_the_user_can_fix_is_one_line(agents: str, agent: str, token: str, cause: str) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, agents + agent, token=token) as process:
            code, log = await ended(process)
            assert code == 2
            assert re.fullmatch(r"sleuth: [^\n]*\n", log)
            assert cause in log

    play(scene())


def test_gateway_without_workers_is_an_error(agents: str) -> None:
    async def scene() -> None:
        with Gateway() as gateway, working(gateway.url, f"{agents}.run") as process:
            code, log = await ended(process)
            assert code == 2
            assert "404" in log

    play(scene())


@pytest.mark.parametrize(("grace", "outcome"), [("30", None), ("0.1", AttemptLost)])
def test_sigterm_finishes_or_hands_back(agents: str, grace: str, outcome: type[Exception] | None) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, f"{agents}.plain", "--grace", grace) as process:
            running = asyncio.ensure_future(launch(workers, "sleep 1"))
            await until(lambda: workers.queue.running)
            process.terminate()
            later = asyncio.ensure_future(launch(workers, "reward 1"))
            (result,) = await collect(running)
            assert result is None if outcome is None else isinstance(result, outcome)
            assert (await ended(process))[0] == 0
            # Assigned just before the signal arrived, or still waiting for another worker: not lost.
            assert not later.done() or later.result() == Score(1.0)
            later.cancel()

    play(scene())


def test_task_of_a_killed_worker_is_lost_and_others_go_on(agents: str) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, f"{agents}.run", "--concurrency", "1") as process:
            lost = asyncio.ensure_future(launch(workers, "sleep 600", 600.0))
            await until(lambda: workers.queue.running)
            process.kill()
            with working(url, f"{agents}.run"):
                assert await launch(workers, "reward 1") == Score(1.0)
                (result,) = await collect(lost)
                assert isinstance(result, AttemptLost)

    play(scene())


@pytest.mark.parametrize("options", [(), ("--processes",)], ids=["threads", "processes"])
def test_blocked_attempt_is_given_up_and_others_go_on(agents: str, options: tuple[str, ...]) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, QUICK)
        with serve(workers) as url, working(url, f"{agents}.plain", "--concurrency", "1", *options):
            blocked, after = await collect(launch(workers, "sleep 600", 0.5), launch(workers, "reward 1"))
            assert isinstance(blocked, FunctionFailed)
            assert "0.5 s" in str(blocked)
            assert after == Score(1.0)

    play(scene())


def test_worker_connects_again_to_a_gateway_that_was_started_anew(agents: str) -> None:
    async def scene() -> None:
        before, after = RemoteWorkers(TOKEN, QUICK), RemoteWorkers(TOKEN, QUICK)
        with serve(before) as url:
            process = working(url, f"{agents}.plain", "--concurrency", "1", "--processes")
            running = process.__enter__()
            void = asyncio.ensure_future(launch(before, "sleep 600", 600.0))
            await until(lambda: before.queue.running)
        with serve(after, int(url.rpartition(":")[2])):
            assert await launch(after, "reward 1") == Score(1.0)
        void.cancel()
        running.kill()
        process.__exit__(None, None, None)

    play(scene())


def test_attempts_survive_an_interrupted_connection(agents: str) -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, Timing(poll=1.0, heartbeat=0.1, silence=20.0))
        with serve(workers) as url:
            process = working(url, f"{agents}.patient")
            running = process.__enter__()
            attempt = asyncio.ensure_future(launch(workers, "0.5"))
            await until(lambda: workers.queue.running)
        await asyncio.sleep(0.8)  # the attempt ends meanwhile
        with serve(workers, int(url.rpartition(":")[2])):
            assert await attempt == Score(1.0)
        running.kill()
        process.__exit__(None, None, None)

    play(scene())


def test_worker_needs_only_httpx() -> None:
    """None in sys.modules makes an import fail, as if the library were not installed."""
    script = f"import sys; sys.modules |= dict.fromkeys({HEAVY!r}); import sleuth.gateway.worker"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
