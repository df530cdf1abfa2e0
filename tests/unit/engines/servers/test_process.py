"""Server processes that do not start, or do not stop by themselves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sleuth.engines.servers.process import start
from sleuth.engines.sglang.dialect import Sglang
from sleuth.engines.vllm.dialect import Vllm
from sleuth.errors import ConfigError, EngineFailure


def opened(command: Path, tmp_path: Path, timeout: float = 30.0) -> None:
    with start(Vllm(), [str(command), "serve"], tmp_path, tmp_path / "log", context=64, slots=2, timeout=timeout):
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


def test_sglang_is_started_with_our_arguments_before_those_of_the_command(tmp_path: Path) -> None:
    command = program(tmp_path, 'echo "$SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN $@"; exit 3')
    words = [str(command), "-m", "sglang.launch_server", "--tp-size", "2"]
    with pytest.raises(EngineFailure, match="code 3"):
        start(Sglang(), words, tmp_path, tmp_path / "log", context=64, slots=2, dtype="bfloat16")
    said = (tmp_path / "log").read_text()
    assert f"1 -m sglang.launch_server --model-path {tmp_path} " in said
    for pair in ("--context-length 66", "--max-running-requests 2", "--dtype bfloat16"):
        assert pair in said
    assert said.rstrip().endswith("--tp-size 2")


def test_a_server_that_never_serves_is_stopped_with_its_children(tmp_path: Path) -> None:
    command = program(tmp_path, 'sleep 600 & echo $! > "$(dirname "$0")/child"; wait')
    for timeout in (0.5, 2.0, 8.0, 32.0):  # until it was long enough for the program to start
        with pytest.raises(EngineFailure, match=f"{timeout:g} s"):
            opened(command, tmp_path, timeout=timeout)
        if (tmp_path / "child").exists():
            break
    assert ended(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("children_first", [False, True])
def test_a_server_ends_when_its_parent_is_killed(tmp_path: Path, children_first: bool) -> None:
    """Also where the children of the parent are killed before it, as Ray does with those of an actor."""
    command = program(tmp_path, 'echo $$ > "$(dirname "$0")/child"; sleep 600')
    code = (
        "import sys; from pathlib import Path; from sleuth.engines.servers.process import start; "
        "from sleuth.engines.vllm.dialect import Vllm; "
        "start(Vllm(), [sys.argv[1], 'serve'], Path(sys.argv[2]), Path(sys.argv[2]) / 'log', context=64, slots=2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(command), str(tmp_path)])
    last = time.monotonic() + 60
    while not (tmp_path / "child").exists() and time.monotonic() < last:
        time.sleep(0.01)
    if children_first:
        subprocess.run(["pkill", "-KILL", "-P", str(parent.pid)], check=True)
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
