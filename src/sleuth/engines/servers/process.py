"""A server as a child process: start it, wait until it serves, and stop it with all its child processes.

`python -m sleuth.engines.servers.process COMMAND...` supervises the server: it stops the server when its standard
input closes, which happens however the parent process ends. Ray kills the child processes of an actor that ends, so
the supervisor is a child of the process that this command starts.
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
from typing import Protocol, Self

import httpx

from sleuth.errors import ConfigError, EngineFailure

# Seconds.
START_TIMEOUT = 900.0
POLL_INTERVAL = 0.3
STOP_TIMEOUT = 15.0  # between SIGTERM and SIGKILL
LOG_TAIL = 400  # characters of the log in an error message
COMMAND_NOT_FOUND = 127
MODEL_NAME = "policy"
HOST = "127.0.0.1"


class Launcher(Protocol):
    """How a kind of server is started; `health` answers with status 200 once it serves."""

    example: str
    environment: Mapping[str, str]
    health: str
    health_timeout: float

    def command_end(self, command: Sequence[str]) -> int:
        """Return the number of words in the command before its options."""
        ...

    def arguments(self, model: Path, context: int, slots: int) -> list[str]:
        """Return the arguments for a model, a context length and a number of concurrent sequences."""
        ...


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server, and the process that ends with its supervisor."""

    address: str
    supervisor: "subprocess.Popen[bytes]"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self.supervisor.poll() is None

    def stop(self) -> None:
        """Stop the server and wait until all its processes have ended."""
        if self.supervisor.stdin is not None:
            self.supervisor.stdin.close()
        self.supervisor.wait(STOP_TIMEOUT + 15.0)


def start(
    launcher: Launcher,
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

    Options in the command, which come after the word that starts the server, take precedence.
    """
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
    common = {"--host": HOST, "--port": port, "--served-model-name": MODEL_NAME, "--dtype": dtype}
    settings = [str(part) for pair in common.items() for part in pair]
    end = launcher.command_end(command)
    words = [*command[:end], *launcher.arguments(model, context, slots), *settings, *options, *command[end:]]
    if log.exists():  # of a server that this one replaces: it may say why
        log.replace(log.with_suffix(".old.log"))
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  the user's own command
            [sys.executable, "-m", "sleuth.engines.servers.process", *words],
            stdout=out,
            stderr=out,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for us alone
            env=os.environ | dict(launcher.environment) | dict(environment or {}),
        )
    server = ServerProcess(f"http://{HOST}:{port}", process)
    try:
        _wait_until_healthy(server, launcher, command[0], log, timeout)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_healthy(server: ServerProcess, launcher: Launcher, program: str, log: Path, timeout: float) -> None:
    deadline, url = time.monotonic() + timeout, f"{server.address}{launcher.health}"
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(url, timeout=launcher.health_timeout, trust_env=False).status_code == httpx.codes.OK:
                return
        code = server.supervisor.poll()
        if code is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-LOG_TAIL:].strip()
            if code == COMMAND_NOT_FOUND:
                raise ConfigError(f"engine.command: {tail}; expected a command like {launcher.example}")
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


def supervise_detached(command: Sequence[str]) -> int:
    """Supervise the command in a child process, which outlives this one; return its exit code."""
    child = os.fork()
    if child == 0:
        os._exit(supervise(command))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(supervise_detached(sys.argv[1:]))
