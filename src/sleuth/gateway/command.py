"""The launcher of `agent.command`: a program that is started for each attempt and calls the model by environment."""

import asyncio
import json
import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.endpoint import TOKEN_ENV, Endpoint
from sleuth.gateway.launcher import describe_deadline
from sleuth.http.connections import LoopSemaphore

MAX_OUTPUT = 2000  # characters of the program's output in an error
DRAIN_SECONDS = 1.0  # for output that background processes of the program still hold open


class CommandLauncher:
    """Starts the program with the question on its standard input; it posts its reward, or the rubric computes it.

    The environment has the variables of `Endpoint.environment`, SLEUTH_QUESTION, and SLEUTH_TASK in JSON.
    """

    def __init__(self, command: str, concurrency: int) -> None:
        self._words = split_command(command)
        self._command = command
        self._slots = LoopSemaphore(concurrency)
        self._running: set[int] = set()
        self.routes: Sequence[BaseRoute] = ()

    def start(self, url: str) -> None:
        """No-op: the endpoint of an attempt has the address."""

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> None:
        async with self._slots.current():
            await self._run(task, endpoint, deadline)

    def close(self) -> None:
        for process in list(self._running):
            _kill_group(process)

    async def _run(self, task: Task, endpoint: Endpoint, deadline: float) -> None:
        async with _collect_output() as (output, writable):
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=writable,
                    stderr=writable,
                    env=environment(task, endpoint),
                    start_new_session=True,
                )
            except OSError as error:
                raise FunctionFailed(f"{self._command!r} could not be started: {error}") from error
            self._running.add(process.pid)
            try:
                async with asyncio.timeout(deadline):
                    await process.communicate(f"{task.question.question}\n".encode())
                    code = await process.wait()
            except TimeoutError:
                raise FunctionFailed(describe_deadline(self._command, deadline)) from None
            finally:
                self._running.discard(process.pid)
                if process.returncode is None:
                    _kill_group(process.pid)
                    await process.wait()
        if code != 0:
            ended = f"exited with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            raise FunctionFailed(f"{self._command!r} {ended}: {_last_lines(output) or 'it printed nothing'}")


def split_command(command: str) -> list[str]:
    """Return the words of `agent.command`; raises ConfigError if they are malformed or there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"agent.command = {command!r} is not a command ({error}); write it as for a shell") from error
    if shutil.which(words[0]) is None:
        raise ConfigError(f"agent.command: there is no program {words[0]!r}; install it, or give its path")
    return words


def environment(task: Task, endpoint: Endpoint) -> dict[str, str]:
    """The environment of a program that makes an attempt."""
    question = task.question
    row = {
        "id": question.id,
        "question": question.question,
        "golden_answers": question.golden_answers,
        "group": task.group,
        "sample": task.sample,
        "step": task.step,
    }
    inherited = {name: value for name, value in os.environ.items() if name != TOKEN_ENV}
    own = {"SLEUTH_TASK": json.dumps(row), "SLEUTH_QUESTION": question.question}
    return {**inherited, **endpoint.environment, **own}


@asynccontextmanager
async def _collect_output() -> AsyncIterator[tuple[bytearray, int]]:
    """Yield the last part of what is written to a pipe, and its writing end; background processes may keep it open."""
    output, reader = bytearray(), asyncio.StreamReader()
    readable, writable = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", 0)
    )

    async def read() -> None:
        while piece := await reader.read(2**16):
            output.extend(piece)
            del output[: -4 * MAX_OUTPUT]

    reading = asyncio.create_task(read())
    try:
        yield output, writable
    finally:
        os.close(writable)
        await asyncio.wait({reading}, timeout=DRAIN_SECONDS)
        reading.cancel()
        transport.close()


def _kill_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_lines(output: bytearray) -> str:
    """The last lines of the output, joined into one."""
    return " | ".join(line for line in output.decode("utf-8", "replace").splitlines() if line.strip())[-MAX_OUTPUT:]
