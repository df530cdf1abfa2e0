"""Agents in processes of their own: reuse, crashes, kills, agents that block, and the end of all of them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sleuth.agent.task import Task
from sleuth.gateway.agent_function import load_agent
from sleuth.gateway.agent_processes import Outcome, ProcessPool
from sleuth.gateway.assignment import Assignment
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question

# Starts a pool whose only agent blocks, prints the pids of the pool and of the agent, and then does what it is told.
BLOCKED = """
import asyncio, sys
from pathlib import Path
from sleuth.agent.task import Task
from sleuth.gateway.agent_processes import ProcessPool
from sleuth.gateway.assignment import Assignment
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question

def block(task, llm):
    import os, time
    Path(sys.argv[1]).write_text(f"{os.getppid()} {os.getpid()}")
    time.sleep(600)

pool = ProcessPool("import:x.block", block)
asyncio.run(pool.run(Assignment("a", Task(Question("q", "", (), "t")), Endpoint("http://g/rollout/a/v1", "k"))))
"""


def assign(text: str) -> Assignment:
    return Assignment("a", Task(Question("q", text, (), "test")), Endpoint("http://g/rollout/a/v1", "7"))


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_for_end(*pids: int) -> None:
    ends = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < ends, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.05)


Ask = Callable[[str], Awaitable[Outcome]]


@pytest.fixture(params=["plain", "run"])
def play(request: pytest.FixtureRequest, agents: str) -> Callable[[Callable[[Ask], Awaitable[None]]], None]:
    """Plays a scene with a pool of its own."""
    spec = f"{agents}.{request.param}"

    def play(scene: Callable[[Ask], Awaitable[None]]) -> None:
        pool = ProcessPool(spec, load_agent(spec))

        async def bounded() -> None:
            try:
                async with asyncio.timeout(30):
                    await scene(lambda text: pool.run(assign(text)))
            finally:
                await pool.close()

        asyncio.run(bounded())

    return play


Play = Callable[[Callable[[Ask], Awaitable[None]]], None]


def reward(outcome: Outcome) -> float:
    return float(outcome["reward"]["total"])


def test_reward_error_and_nothing(play: Play) -> None:
    async def scene(ask: Ask) -> None:
        assert await ask("reward 0.5") == {"reward": {"total": 0.5, "parts": {}, "turns": []}}
        assert await ask("none") == {"reward": None}
        assert "ValueError: x" in (await ask("raise x"))["error"]
        assert "'x'" in (await ask("text x"))["error"]
        assert "SystemExit" in (await ask("quit x"))["error"]
        assert "CancelledError: x" in (await ask("cancel x"))["error"]
        assert reward(await ask("key")) == 7.0

    play(scene)


def test_processes_are_reused(play: Play) -> None:
    async def scene(ask: Ask) -> None:
        assert await ask("pid") == await ask("pid")

    play(scene)


def test_attempts_at_the_same_time_have_their_own_processes(play: Play) -> None:
    async def scene(ask: Ask) -> None:
        pids = {reward(outcome) for outcome in await asyncio.gather(*map(ask, ["pid"] * 8))}
        assert len(pids - {os.getpid()}) == 8

    play(scene)


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        ("exit 3", "error", "exit code 3"),
        (f"signal {int(signal.SIGSYS)}", "error", "SIGSYS"),
        (f"signal {int(signal.SIGKILL)}", "lost", "SIGKILL"),
    ],
)
def test_end_of_a_process_ends_its_attempt_only(play: Play, text: str, kind: str, cause: str) -> None:
    async def scene(ask: Ask) -> None:
        ended, other = await asyncio.gather(ask(text), ask("sleep 0.2"))
        assert cause in ended[kind]
        assert other == {"reward": None}
        assert reward(await ask("reward 2")) == 2.0

    play(scene)


def test_process_that_died_while_it_was_idle_is_replaced(play: Play) -> None:
    async def scene(ask: Ask) -> None:
        pid = int(reward(await ask("pid")))
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        await asyncio.sleep(0.05)
        assert reward(await ask("pid")) != pid

    play(scene)


def test_cancelled_attempt_is_killed(play: Play) -> None:
    async def scene(ask: Ask) -> None:
        pid = int(reward(await ask("pid")))
        blocked = asyncio.ensure_future(ask("sleep 600"))
        await asyncio.sleep(0.1)
        blocked.cancel()
        await asyncio.wait({blocked})
        wait_for_end(pid)
        assert reward(await ask("reward 1")) == 1.0

    play(scene)


@pytest.mark.parametrize("victim", ["worker", "fork server"])
def test_no_process_survives_the_worker(victim: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", BLOCKED, str(pids)], stderr=subprocess.DEVNULL) as worker:
        ends = time.monotonic() + 30
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            assert time.monotonic() < ends
            time.sleep(0.05)
        server, agent = map(int, pids.read_text().split())
        assert is_alive(server)
        assert is_alive(agent)
        os.kill(worker.pid if victim == "worker" else server, signal.SIGKILL)
        wait_for_end(server, agent)
        worker.kill()
