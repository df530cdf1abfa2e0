"""A vLLM server as a child process: start it, wait until it serves, and stop it with all its child processes.

`python -m sleuth.engines.vllm.server_process COMMAND...` supervises the server: it stops the server when its standard
input closes, which happens however the parent process ends.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from sleuth.errors import ConfigError, EngineFailure

# Seconds.
START_TIMEOUT = 900.0
POLL_INTERVAL = 0.3
STOP_TIMEOUT = 15.0  # between SIGTERM and SIGKILL
LOG_TAIL = 400  # characters of the log in an error message
COMMAND_NOT_FOUND = 127
MODEL_NAME = "policy"


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server and its supervisor process."""

    address: str
    supervisor: "subprocess.Popen[bytes]"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and wait until all its processes have ended."""
        if self.supervisor.stdin is not None:
            self.supervisor.stdin.close()
        self.supervisor.wait(STOP_TIMEOUT + 15.0)


def start(
    command: Sequence[str],
    model: Path,
    log: Path,
    *,
    context: int,
    slots: int,
    dtype: str = "auto",
    timeout: float = START_TIMEOUT,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start a server with `command` (such as `vllm serve`) that ends with this process; its output goes to `log`.

    Options after the word `serve` in the command take precedence.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": MODEL_NAME,
        "--max-model-len": context,
        "--max-num-seqs": slots,
        "--dtype": dtype,
        "--logprobs-mode": "processed_logprobs",
    }
    arguments = [str(model), *(str(part) for pair in settings.items() for part in pair), *options]
    serve = list(command).index("serve") + 1
    words = [*command[:serve], *arguments, *command[serve:]]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  the user's own command
            [sys.executable, "-m", "sleuth.engines.vllm.server_process", *words],
            stdout=out,
            stderr=out,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for us alone
            env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"} | dict(environment or {}),
        )
    server = ServerProcess(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_healthy(server, command[0], log, timeout)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_healthy(server: ServerProcess, program: str, log: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"{server.address}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK:
                return
        code = server.supervisor.poll()
        if code is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-LOG_TAIL:].strip()
            if code == COMMAND_NOT_FOUND:
                raise ConfigError(f"engine.command: {tail}; expected the program vllm, or its path")
            if code is not None:
                raise EngineFailure(f"{program} exited with code {code} before serving; {log} ends: {tail}")
            raise EngineFailure(f"{program} did not serve within {timeout:g} s; {log} ends: {tail}")
        time.sleep(POLL_INTERVAL)


def supervise(command: Sequence[str]) -> int:
    """Run the command while standard input is open; return its exit code once its process group is gone."""
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return COMMAND_NOT_FOUND

    def stop_at_end_of_input() -> None:
        # Unbuffered: no thread may hold the lock of sys.stdin when the interpreter exits.
        os.read(sys.stdin.fileno(), 1)
        _signal_group(server.pid, signal.SIGTERM)
        time.sleep(STOP_TIMEOUT)
        _signal_group(server.pid, signal.SIGKILL)

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    code = server.wait()
    _signal_group(server.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
