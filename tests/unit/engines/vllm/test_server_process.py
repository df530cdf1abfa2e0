"""Server processes that do not start, or do not stop by themselves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sleuth.engines.vllm.server_process import start
from sleuth.errors import ConfigError, EngineFailure


def opened(command: Path, tmp_path: Path, timeout: float = 30.0) -> None:
    with start([str(command), "serve"], tmp_path, tmp_path / "log", context=64, slots=2, timeout=timeout):
        raise AssertionError("it serves")


def program(folder: Path, script: str) -> Path:
    path = folder / "vllm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_missing_program_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.command.*nowhere.*No such file"):
        opened(tmp_path / "nowhere", tmp_path)


def test_an_early_exit_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    command = program(tmp_path, 'echo "no memory left"; echo "$VLLM_SERVER_DEV_MODE $@"; exit 3')
    with pytest.raises(EngineFailure, match=r"3[^$]*no memory left"):
        opened(command, tmp_path)
    said = (tmp_path / "log").read_text()
    assert f"1 serve {tmp_path} " in said
    assert "--logprobs-mode processed_logprobs" in said


def test_a_server_that_never_serves_is_stopped_with_its_children(tmp_path: Path) -> None:
    command = program(tmp_path, 'sleep 600 & echo $! > "$(dirname "$0")/child"; wait')
    with pytest.raises(EngineFailure, match=r"0\.5 s"):
        opened(command, tmp_path, timeout=0.5)
    assert ended(int((tmp_path / "child").read_text()))


def test_a_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = program(tmp_path, 'echo $$ > "$(dirname "$0")/child"; sleep 600')
    code = (
        "import sys; from pathlib import Path; from sleuth.engines.vllm.server_process import start; "
        "start([sys.argv[1], 'serve'], Path(sys.argv[2]), Path(sys.argv[2]) / 'log', context=64, slots=2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(command), str(tmp_path)])
    last = time.monotonic() + 60
    while not (tmp_path / "child").exists() and time.monotonic() < last:
        time.sleep(0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert ended(int((tmp_path / "child").read_text()))


def ended(process: int) -> bool:
    """Whether a process is gone within seconds."""
    last = time.monotonic() + 10
    while runs(process) and time.monotonic() < last:
        time.sleep(0.01)
    return not runs(process)


def runs(process: int) -> bool:
    """Whether a process does more than wait for someone to take note of its end."""
    ended = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return ended.stdout.strip()[:1] not in ("", "Z")
