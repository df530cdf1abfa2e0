"""Servers of our own that do not start, or do not end by themselves."""

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from sleuth.engines.vllm.launch import served
from sleuth.errors import ConfigError, EngineFailure


async def opened(command: Path, tmp_path: Path, patience: float = 30.0) -> None:
    async with served(command, tmp_path, tmp_path / "log", context=64, slots=2, patience=patience):
        raise AssertionError("it serves")


def program(folder: Path, script: str) -> Path:
    path = folder / "vllm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be run"):
        asyncio.run(opened(tmp_path / "nowhere", tmp_path))


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = program(tmp_path, 'echo "no memory left"; echo "$VLLM_SERVER_DEV_MODE $@"; exit 3')
    with pytest.raises(EngineFailure, match=r"ended with 3 before it served;[^$]*no memory left"):
        asyncio.run(opened(command, tmp_path))
    said = (tmp_path / "log").read_text()
    assert f"1 serve {tmp_path} " in said
    assert "--logprobs-mode processed_logprobs" in said


def test_a_server_that_never_serves_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    command = program(tmp_path, 'sleep 600 & echo $! > "$(dirname "$0")/child"; wait')
    with pytest.raises(EngineFailure, match=r"did not serve within 0\.5 s"):
        asyncio.run(opened(command, tmp_path, patience=0.5))
    child = int((tmp_path / "child").read_text())
    last = time.monotonic() + 5
    while runs(child) and time.monotonic() < last:
        time.sleep(0.01)
    assert not runs(child)


def runs(process: int) -> bool:
    """Whether a process does more than wait for someone to take note of its end."""
    ended = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return ended.stdout.strip()[:1] not in ("", "Z")
