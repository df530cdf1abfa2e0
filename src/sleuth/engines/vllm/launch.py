"""A vLLM server of our own: started from an executable, waited for, and stopped with all its processes."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sleuth.engines.vllm.server import Server
from sleuth.errors import ConfigError, EngineFailure

# Seconds a server has to end by itself.
GRACE = 15.0
LAST = 400


@dataclass(frozen=True, slots=True)
class Started:
    """A server that runs; its processes are the group `pid`."""

    address: str
    pid: int


@asynccontextmanager
async def served(
    command: Path,
    model: Path,
    log: Path,
    *,
    context: int,
    slots: int,
    dtype: str = "auto",
    patience: float = 900.0,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Started]:
    """A server that `command` (the program vllm) runs for the length of the block; it writes to `log`.

    It may take `patience` seconds to start. `options` are given to `vllm serve` as they are.
    """
    port = _free_port()
    arguments = [str(command), "serve", *_arguments(model, port, context, slots, dtype), *options]
    with log.open("wb") as out:
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdout=out,
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
                # A session of its own: its engine processes are stopped with it.
                start_new_session=True,
                env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"} | dict(environment or {}),
            )
        except OSError as error:
            raise ConfigError(f"{command} cannot be run ({error}); expected the program vllm") from error
    address = f"http://127.0.0.1:{port}"
    try:
        await _wait(process, address, log, patience)
        yield Started(address, process.pid)
    finally:
        await _stop(process)


def _arguments(model: Path, port: int, context: int, slots: int, dtype: str) -> list[str]:
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": "policy",
        "--max-model-len": context,
        "--max-num-seqs": slots,
        "--dtype": dtype,
        "--logprobs-mode": "processed_logprobs",
    }
    return [str(model), *(str(part) for pair in settings.items() for part in pair)]


async def _wait(process: asyncio.subprocess.Process, address: str, log: Path, patience: float) -> None:
    server, loop = Server(address, places=1, silence=5.0), asyncio.get_running_loop()
    end = loop.time() + patience
    try:
        while not await server.lives():
            if process.returncode is not None:
                raise EngineFailure(f"vLLM ended with {process.returncode} before it served; {log} ends: {_end(log)}")
            if loop.time() > end:
                raise EngineFailure(f"vLLM did not serve within {patience:g} s; {log} ends: {_end(log)}")
            await asyncio.sleep(0.3)
    finally:
        await server.close()


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Asks its processes to end, and ends those that do not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if _signalled(process.pid, how) and process.returncode is None:
            try:
                await asyncio.wait_for(process.wait(), GRACE)
            except TimeoutError:
                continue


def _signalled(group: int, how: signal.Signals) -> bool:
    try:
        os.killpg(group, how)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST:].strip()
