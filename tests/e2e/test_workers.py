"""Worker processes that are killed at random: every attempt is accounted for, none is lost, none counts twice.

With SLEUTH_WORKERS=128 at full size; the figures are printed with -s.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sleuth.agent.episode import run_batch
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import SearchUnavailable
from sleuth.gateway.outside import OutsideAgent
from sleuth.gateway.server import Gateway
from sleuth.gateway.task_queue import Timing
from sleuth.gateway.workers import LocalWorkers, RemoteWorkers
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Question, StopReason, Trajectory

pytestmark = pytest.mark.e2e

WORKERS = int(os.environ.get("SLEUTH_WORKERS", "6"))
KILLED = max(2, WORKERS * 20 // 128)
ATTEMPTS = 4 * WORKERS
# With many processes on few cores, heartbeats are late: a worker that is alive must not count as lost.
TIMING = Timing(poll=5.0, heartbeat=1.0, silence=10.0 if WORKERS <= 16 else 60.0)
TOKEN = "secret"

# Two calls to the model, with pauses in which the process may be killed; the reward is the number of the question.
AGENT = """
import os, random, time
import httpx

PAUSE = max(0.5, int(os.environ.get("SLEUTH_WORKERS", "6")) / 32)

client = httpx.Client(timeout=120)

def run(task, llm):
    messages = [{"role": "user", "content": task.question.question}]
    for _ in range(2):
        time.sleep(random.uniform(0.5, 1.5) * PAUSE)
        body, headers = {"model": llm.model, "messages": messages}, {"Authorization": f"Bearer {llm.api_key}"}
        reply = client.post(f"{llm.base_url}/chat/completions", json=body, headers=headers)
        reply.raise_for_status()
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "Are you sure?"}]
    return float(task.question.question)
"""


class NoSearch:
    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [SearchUnavailable(query, "nothing is searched here") for query in queries]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stressed_agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:stressed_agent.run"


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


def memory(pids: Sequence[int]) -> float:
    """Megabytes per process, with a share of what several processes use."""
    kilobytes = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        kilobytes += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kilobytes / 1024 / max(len(pids), 1)


class Processes(LocalWorkers):
    """agent.workers: processes forked by one program."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec, WORKERS, TIMING)

    def pids(self) -> list[int]:
        return [pid for server in children(self._program.pid) for pid in children(server)] if self._program else []


class Programs(RemoteWorkers):
    """`sleuth worker` processes; one that was killed stays away."""

    def __init__(self, spec: str) -> None:
        super().__init__(TOKEN, TIMING)
        self._spec, self._programs = spec, list[subprocess.Popen[bytes]]()

    def start(self, url: str) -> None:
        command = [sys.executable, "-m", "sleuth.gateway.worker", "--gateway", url, "--agent", self._spec]
        environment = {**os.environ, "SLEUTH_GATEWAY_TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join(sys.path)}
        for _ in range(WORKERS):
            program = subprocess.Popen([*command, "--concurrency=1"], env=environment, stderr=subprocess.DEVNULL)
            self._programs.append(program)

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait()

    def pids(self) -> list[int]:
        alive = [program.pid for program in self._programs if program.poll() is None]
        return alive if self.queue.workers >= WORKERS or self.queue.running else []


async def kill_at_random(workers: Processes | Programs) -> None:
    """Kill workers one after the other, once all of them have started."""
    started = time.monotonic()
    while len(workers.pids()) < WORKERS:  # noqa: ASYNC110 (other processes)
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - started
    print(f"{WORKERS} workers have started after {seconds:.1f} s, with {memory(workers.pids()):.1f} MB each")
    for victim in random.sample(workers.pids(), KILLED):
        os.kill(victim, signal.SIGKILL)
        await asyncio.sleep(random.uniform(0.0, 3.0 / KILLED))


@pytest.mark.parametrize("kind", [Processes, Programs])
def test_killed_workers(kind: type[Processes] | type[Programs], spec: str, speaker: Callable[..., Tokens]) -> None:
    tokens = speaker("hermes")
    engine = ScriptedEngine(lambda _: tokens.encode_trusted("Yes.<|im_end|>"))
    workers = kind(spec)
    config = AgentConfig(run=spec, workers=WORKERS)
    agent = OutsideAgent(engine, tokens, Toolbox(NoSearch(), 1), config, Gateway(routes=workers.routes), workers)
    tasks = [Task(Question(f"q{number}", str(number), (), "test")) for number in range(ATTEMPTS)]

    async def play() -> list[Trajectory]:
        async with asyncio.timeout(120 + 4 * WORKERS):
            killing = asyncio.create_task(kill_at_random(workers))
            trajectories = await run_batch(agent, tasks, WORKERS)
            await killing
        return trajectories

    started = time.monotonic()
    with agent:
        trajectories = asyncio.run(play())
    counts = workers.queue.counts
    print(f"{ATTEMPTS} attempts in {time.monotonic() - started:.1f} s: {counts}")
    assert [trajectory.question.id for trajectory in trajectories] == [task.question.id for task in tasks]
    lost = [trajectory for trajectory in trajectories if trajectory.stop is StopReason.FUNCTION_FAILED]
    finished = [trajectory for trajectory in trajectories if trajectory.stop is StopReason.ANSWERED]
    assert len(lost) + len(finished) == ATTEMPTS
    for trajectory in finished:  # one whole attempt: its own reward, and nothing of an attempt that was lost
        assert trajectory.reward is not None
        assert trajectory.reward.total == float(trajectory.question.question)
        assert len(trajectory.turns) == 2
    assert counts.finished == len(finished)
    assert counts.added == counts.ended == counts.finished + counts.lost
    assert counts.added == ATTEMPTS + counts.lost - len(lost)  # each loss was repeated once
    assert 0 < counts.lost <= KILLED
    assert (counts.failed, counts.late, counts.withdrawn, counts.refused) == (0, 0, 0, 0)
