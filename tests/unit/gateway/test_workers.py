"""The routes of workers, and worker processes on this machine."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost
from sleuth.gateway.server import Gateway
from sleuth.gateway.task_queue import Timing
from sleuth.gateway.workers import TOKEN_FILE, LocalWorkers, RemoteWorkers, worker_token
from sleuth.records import Question, Score

TOKEN = "secret"
QUICK = Timing(poll=0.5, heartbeat=0.1, silence=3.0)
HEADERS = {"Authorization": f"Bearer {TOKEN}"}

# A trainer: prints the pid of its agent, whose attempt never ends.
TRAINER = """
import asyncio, sys
from sleuth.agent.task import Task
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.server import Gateway
from sleuth.gateway.workers import LocalWorkers
from sleuth.records import Question
sys.path.append(sys.argv[1])
workers = LocalWorkers("import:obedient_agents.plain", 2)

async def launch(text):
    return await workers.launch(Task(Question("q", text, (), "test")), Endpoint("http://g/rollout/a/v1", "7"), 600.0)

async def main():
    print(int((await launch("pid")).total), flush=True)
    await launch("sleep 600")

with Gateway(routes=workers.routes) as gateway:
    workers.start(gateway.url)
    asyncio.run(main())
"""


def launch(workers: LocalWorkers, text: str, deadline: float = 30.0) -> Awaitable[Score | None]:
    task = Task(Question("q", text, (), "test"))
    return workers.launch(task, Endpoint("http://127.0.0.1:1/rollout/a/v1", "7"), deadline)


@contextmanager
def serve(workers: LocalWorkers | RemoteWorkers, port: int = 0) -> Iterator[str]:
    with Gateway(port=port, routes=workers.routes) as gateway:
        yield gateway.url


def play(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene

    asyncio.run(bounded())


async def collect(*attempts: Awaitable[Score | None]) -> list[Any]:
    return await asyncio.gather(*attempts, return_exceptions=True)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def wait_for_end(*pids: int) -> None:
    ends = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < ends, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.05)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("path", "body", "status", "fact"),
    [
        ("pull", {"worker": "gone"}, 404, "register"),
        ("heartbeat", {"worker": "gone", "running": []}, 404, "register"),
        ("result", {"worker": "gone", "attempt": "a"}, 404, "register"),
        ("leave", {"worker": "gone"}, 404, "register"),
        ("pull", {}, 422, "worker is missing"),
        ("heartbeat", {"worker": "gone", "running": "a"}, 422, "running"),
        ("register", {"name": "n" * 1000}, 422, "name"),
        ("register", {"name": "n" * 2**21}, 413, "body"),
    ],
)
def test_bad_requests_are_refused(path: str, body: dict[str, Any], status: int, fact: str) -> None:
    with serve(RemoteWorkers(TOKEN)) as url:
        reply = httpx.post(f"{url}/worker/{path}", json=body, headers=HEADERS)
        assert reply.status_code == status
        assert fact in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["register", "pull", "heartbeat", "result", "leave"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
def test_every_path_needs_the_token(path: str, headers: dict[str, str]) -> None:
    with serve(RemoteWorkers(TOKEN)) as url:
        reply = httpx.post(f"{url}/worker/{path}", json={}, headers=headers)
        assert reply.status_code == 401
        assert "SLEUTH_GATEWAY_TOKEN" in reply.json()["error"]["message"]


def test_result_counts_once_and_only_where_the_attempt_runs() -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN)
        with serve(workers) as url:
            async with httpx.AsyncClient(base_url=f"{url}/worker", headers=HEADERS) as client:

                async def post(path: str, **body: Any) -> httpx.Response:
                    return await client.post(f"/{path}", json=body)

                one, other = [(await post("register", name=name)).json()["worker"] for name in "ab"]
                attempt = asyncio.ensure_future(workers.launch(*TASK))
                taken = (await post("pull", worker=one)).json()["assignments"][0]["id"]
                reward = {"total": 1.0, "parts": {"em": 1.0}, "turns": [0.5]}
                nan = f'{{"worker": "{one}", "attempt": "{taken}", "reward": {{"total": NaN}}}}'
                json = {"content-type": "application/json"}
                assert (await client.post("/result", content=nan, headers=json)).status_code == 422
                assert (await post("result", worker=other, attempt=taken, reward=reward)).status_code == 409
                assert not attempt.done()
                assert (await post("result", worker=one, attempt=taken, reward=reward)).status_code == 200
                again = await post("result", worker=one, attempt=taken, reward={"total": 2.0})
                assert again.status_code == 409
                assert await attempt == Score(1.0, {"em": 1.0}, (0.5,))
                counts = workers.queue.counts
                assert (counts.added, counts.finished, counts.refused) == (1, 1, 2)

    play(scene())


TASK = Task(Question("q", "Who?", (), "test")), Endpoint("http://127.0.0.1:1/rollout/a/v1", "7"), 30.0


def test_pull_whose_client_left_gets_nothing() -> None:
    async def scene() -> None:
        workers = RemoteWorkers(TOKEN, Timing(poll=20.0))
        with serve(workers) as url:
            async with httpx.AsyncClient(base_url=f"{url}/worker", headers=HEADERS) as client:
                one, other = [(await client.post("/register", json={"name": name})).json()["worker"] for name in "ab"]
                with pytest.raises(httpx.ReadTimeout):
                    await client.post("/pull", json={"worker": one}, timeout=0.5)
                await asyncio.sleep(0.3)
                attempt = asyncio.ensure_future(workers.launch(*TASK))
                await asyncio.sleep(0.1)
                reply = await client.post("/pull", json={"worker": other}, timeout=5.0)
                assert len(reply.json()["assignments"]) == 1
                attempt.cancel()

    play(scene())


def test_pulls_end_with_the_run() -> None:
    workers = RemoteWorkers(TOKEN, Timing(poll=30.0))

    async def scene() -> None:
        async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=20) as client:
            worker = (await client.post("/worker/register", json={"name": "w"})).json()["worker"]
            pull = asyncio.create_task(client.post("/worker/pull", json={"worker": worker}))
            await asyncio.sleep(0.2)
            workers.close()
            assert (await pull).json() == {"assignments": []}
            again = await client.post("/worker/pull", json={"worker": worker})
            assert (again.status_code, "ended" in again.text) == (503, True)

    with serve(workers) as url:
        play(scene())


def test_token_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLEUTH_GATEWAY_TOKEN", raising=False)
    token = worker_token(tmp_path)
    assert len(token) > 20
    assert worker_token(tmp_path) == token != worker_token(None)
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600
    monkeypatch.setenv("SLEUTH_GATEWAY_TOKEN", "mine")
    assert worker_token(tmp_path) == "mine"


def test_empty_token_file_of_an_interrupted_run_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLEUTH_GATEWAY_TOKEN", raising=False)
    (tmp_path / TOKEN_FILE).touch()
    token = worker_token(tmp_path)
    assert len(token) > 20
    assert worker_token(tmp_path) == token
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600


def test_crash_and_block_end_one_attempt_each(agents: str) -> None:
    async def scene() -> None:
        workers = LocalWorkers(f"{agents}.plain", 4, QUICK)
        with closing(workers), serve(workers) as url:
            workers.start(url)
            texts = (
                "exit 3",
                f"signal {int(signal.SIGKILL)}",
                "raise x",
                *(f"reward {number}" for number in range(20)),
            )
            attempts = collect(launch(workers, "sleep 600", 1.0), *(launch(workers, text) for text in texts))
            blocked, crashed, killed, failed, *others = await attempts
            assert "1 s" in str(blocked)
            assert "exit code 3" in str(crashed)
            assert {type(each) for each in (blocked, crashed, failed)} == {FunctionFailed}
            assert isinstance(killed, AttemptLost)
            assert [score.total for score in others] == list(range(20))

    play(scene())


def test_program_of_the_workers_is_started_again(agents: str) -> None:
    async def scene() -> None:
        workers = LocalWorkers(f"{agents}.plain", 2)  # it is noticed long before a heartbeat is missed
        with closing(workers), serve(workers) as url:
            workers.start(url)
            score = await launch(workers, "pid")
            assert score is not None
            program = parent(parent(int(score.total)))
            blocked = asyncio.ensure_future(launch(workers, "sleep 600", 600.0))
            while not workers.queue.running:  # noqa: ASYNC110 (the state of another thread)
                await asyncio.sleep(0.01)
            os.kill(program, signal.SIGKILL)
            (lost,) = await collect(blocked)
            assert isinstance(lost, AttemptLost)
            assert await launch(workers, "reward 1") == Score(1.0)
            wait_for_end(int(score.total))

    play(scene())


def test_program_that_cannot_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module changes after the check at the start."""

    async def scene() -> None:
        module = tmp_path / "fleeting_agent.py"
        module.write_text("def run(task, llm):\n    return 1.0\n")
        monkeypatch.syspath_prepend(tmp_path)
        workers = LocalWorkers("import:fleeting_agent.run", 2, QUICK)
        module.unlink()
        with closing(workers), serve(workers) as url:
            workers.start(url)
            with pytest.raises(ConfigError, match=r"agent\.run"):
                await launch(workers, "reward 1")

    play(scene())


def test_wrong_function_is_refused_before_the_run(agents: str) -> None:
    with pytest.raises(ConfigError, match="task, llm"):
        LocalWorkers(f"{agents}.wrong", 2)


def test_all_processes_end_with_the_launcher(agents: str) -> None:
    async def scene() -> None:
        workers = LocalWorkers(f"{agents}.plain", 2, QUICK)
        with serve(workers) as url:
            with closing(workers):
                workers.start(url)
                score = await launch(workers, "pid")
                assert score is not None
                server = parent(int(score.total))
                pids = int(score.total), server, parent(server)
                assert all(map(is_alive, pids))
            await asyncio.to_thread(wait_for_end, *pids)

    play(scene())


def test_all_processes_end_with_a_killed_trainer(agents: str) -> None:
    assert agents
    command = [sys.executable, "-c", TRAINER, sys.path[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        agent = int(trainer.stdout.readline())
        pids = agent, parent(agent), parent(parent(agent))
        assert all(map(is_alive, pids))
        trainer.kill()
        wait_for_end(*pids)
