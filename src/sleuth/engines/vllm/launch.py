"""A vLLM server of our own: started by a command, waited for, and stopped with all its processes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from sleuth.engines.vllm.guard import GRACE, NO_PROGRAM
from sleuth.errors import ConfigError, EngineFailure

# Seconds that a server may take to start, and between two looks whether it has.
PATIENCE = 900.0
LOOK = 0.3
LAST = 400
NAME = "policy"


@dataclass(frozen=True, slots=True)
class Started:
    """A server that runs, inside the process that guards it."""

    address: str
    guard: "subprocess.Popen[bytes]"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it, and returns when nothing of it is left."""
        if self.guard.stdin is not None:
            self.guard.stdin.close()
        self.guard.wait(GRACE + 15.0)


def start(
    command: Sequence[str],
    model: Path,
    log: Path,
    *,
    context: int,
    slots: int,
    dtype: str = "auto",
    patience: float = PATIENCE,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Started:
    """A server that `command` (as `vllm serve`) runs until it is stopped, or this process ends; it writes to `log`.

    What stands in the command after its word `serve` are options of the user's own, which have the last word.
    """
    port, named = _free_port(), list(command).index("serve") + 1
    words = [*command[:named], *_arguments(model, port, context, slots, dtype), *options, *command[named:]]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  the user's own command
            [sys.executable, "-m", "sleuth.engines.vllm.guard", *words],
            stdout=out,
            stderr=out,
            stdin=subprocess.PIPE,
            # An interrupt of the terminal is for us alone.
            start_new_session=True,
            env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"} | dict(environment or {}),
        )
    server = Started(f"http://127.0.0.1:{port}", process)
    try:
        _wait(server, command[0], log, patience)
    except BaseException:
        server.stop()
        raise
    return server


def _arguments(model: Path, port: int, context: int, slots: int, dtype: str) -> list[str]:
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": NAME,
        "--max-model-len": context,
        "--max-num-seqs": slots,
        "--dtype": dtype,
        "--logprobs-mode": "processed_logprobs",
    }
    return [str(model), *(str(part) for pair in settings.items() for part in pair)]


def _wait(server: Started, program: str, log: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while not _lives(server.address):
        code = server.guard.poll()
        if code == NO_PROGRAM:
            raise ConfigError(f"engine.command: {_end(log)}; expected the program vllm, whose path may be given")
        if code is not None:
            raise EngineFailure(f"{program} ended with {code} before it served; {log} ends: {_end(log)}")
        if time.monotonic() > end:
            raise EngineFailure(f"{program} did not serve within {patience:g} s; {log} ends: {_end(log)}")
        time.sleep(LOOK)


def _lives(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST:].strip()
