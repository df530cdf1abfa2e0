"""Programs as agents: what they are given, how they end, and that none survives its deadline."""

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.command import CommandLauncher
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question

TASK = Task(Question("q1", "Where is\nOslo?", ("Norway",), "test"), group=1, sample=2, step=3)
ENDPOINT = Endpoint("http://127.0.0.1:1/rollout/a/v1", "key")


def command(script: str, *arguments: object) -> str:
    return shlex.join([sys.executable, "-c", script, *map(str, arguments)])


def run(script: str, *arguments: object, deadline: float = 30.0) -> None:
    async def play() -> None:
        with closing(CommandLauncher(command(script, *arguments), 1)) as launcher:
            await launcher.launch(TASK, ENDPOINT, deadline)

    asyncio.run(play())


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_program_gets_the_task_and_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_GATEWAY_TOKEN", "of the trainer")
    script = "import json, os, sys; json.dump([sys.stdin.read(), dict(os.environ)], open(sys.argv[1], 'w'))"
    run(script, tmp_path / "seen.json")
    question, environment = json.loads((tmp_path / "seen.json").read_text())
    assert question == environment["SLEUTH_QUESTION"] + "\n" == "Where is\nOslo?\n"
    assert {name: environment[name] for name in ENDPOINT.environment} == ENDPOINT.environment
    assert "SLEUTH_GATEWAY_TOKEN" not in environment
    assert json.loads(environment["SLEUTH_TASK"]) == {
        "id": "q1",
        "question": "Where is\nOslo?",
        "golden_answers": ["Norway"],
        "group": 1,
        "sample": 2,
        "step": 3,
    }


def test_failure_shows_the_last_lines() -> None:
    with pytest.raises(FunctionFailed, match=r"code 3: .*line 99$") as failed:
        run("import sys; [print('line', number, file=sys.stderr) for number in range(100)]; sys.exit(3)")
    with pytest.raises(FunctionFailed, match=r"code 1: .*ZeroDivisionError"):
        run("1 / 0")
    assert "\n" not in str(failed.value)


def test_long_output_is_read_and_cut() -> None:
    with pytest.raises(FunctionFailed) as failed:
        run("import sys; print('x' * 10_000_000); sys.exit('the end')")
    assert str(failed.value).endswith("the end")
    assert len(str(failed.value)) < 5000


def test_end_by_a_signal() -> None:
    with pytest.raises(FunctionFailed, match="SIGKILL: it printed nothing"):
        run("import os; os.kill(os.getpid(), 9)")


def test_deadline_kills_the_program_and_what_it_started(tmp_path: Path) -> None:
    script = """if True:
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    """
    with pytest.raises(FunctionFailed, match="1 s"):
        run(script, tmp_path / "pids", deadline=1.0)
    ends = time.monotonic() + 20
    while any(map(is_alive, map(int, (tmp_path / "pids").read_text().split()))):
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_background_process_does_not_delay_the_end() -> None:
    started = time.monotonic()
    run("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(15)'])")
    assert time.monotonic() - started < 10


def test_concurrency_is_bounded(tmp_path: Path) -> None:
    script = """if True:
        import os, sys, time
        from pathlib import Path
        here = Path(sys.argv[1])
        mine = here / str(os.getpid())
        mine.touch()
        running = len(list(here.iterdir()))
        time.sleep(0.2)
        mine.unlink()
        sys.exit(running > 2)
    """

    async def play() -> list[Any]:
        launcher = CommandLauncher(command(script, tmp_path), 2)
        attempts: list[Awaitable[None]] = [launcher.launch(TASK, ENDPOINT, 30.0) for _ in range(6)]
        return await asyncio.gather(*attempts)

    assert asyncio.run(play()) == [None] * 6


def test_cancelled_launch_and_close_kill_programs() -> None:
    async def play() -> None:
        launcher = CommandLauncher(command("import time; time.sleep(600)"), 2)
        first, second = (asyncio.create_task(launcher.launch(TASK, ENDPOINT, 600.0)) for _ in range(2))
        await asyncio.sleep(0.3)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        launcher.close()
        with pytest.raises(FunctionFailed, match="SIGKILL"):
            await second

    asyncio.run(play())


@pytest.mark.parametrize(("written", "fact"), [("no-such-program x", "no-such-program"), ("a 'b", "quotation")])
def test_command_that_cannot_run_is_refused_at_once(written: str, fact: str) -> None:
    with pytest.raises(ConfigError, match=fact):
        CommandLauncher(written, 1)
