"""Processes that call the agent function, one attempt at a time; an agent may block or crash its own process only.

All are forked from one process that has imported the agent and does nothing else, so each starts within milliseconds
and shares its memory. That process ends when the worker ends, whatever the reason, and takes the others with it.
"""

import asyncio
import ctypes
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, NoReturn

from sleuth.errors import FunctionFailed, SleuthError
from sleuth.gateway.agent_function import AgentFunction, agent_failures, as_score, as_score_async
from sleuth.gateway.assignment import Assignment, reward_to_json

PR_SET_PDEATHSIG = 1
MAX_LINE = 2**26  # bytes of an assignment or an outcome
EXIT_SECONDS = 5.0
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # by the system or an operator; other signals are crashes

Outcome = dict[str, Any]  # {"reward": ...}, {"error": sentence} or {"lost": sentence}


class PoolBroken(SleuthError):
    """No more processes can be started."""


@dataclass(slots=True, eq=False)
class AgentProcess:
    """A process that waits for an assignment or runs one."""

    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def kill(self) -> None:
        """Kill the process and whatever it started."""
        self.writer.close()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class ProcessPool:
    """Runs attempts in processes that are started when needed and reused; create it before any event loop or thread."""

    def __init__(self, spec: str, function: AgentFunction) -> None:
        self._requests, requests = socket.socketpair()
        self._exits, exits = socket.socketpair()
        self._server = os.fork()
        if self._server == 0:
            self._requests.close()
            self._exits.close()
            try:
                _serve_forks(requests, exits, spec, function)
            finally:
                os._exit(1)  # never return into the program of the worker
        requests.close()
        exits.close()
        self._idle: list[AgentProcess] = []
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def run(self, assignment: Assignment) -> Outcome:
        """Run an attempt; if this is cancelled, its process is killed."""
        process = await self._take()
        try:
            process.writer.write(json.dumps(assignment.to_json()).encode() + b"\n")
            line = await process.reader.readline()
        except ConnectionError:
            line = b""
        except BaseException:
            process.kill()
            raise
        if line:
            self._idle.append(process)
            outcome: Outcome = json.loads(line)
            return outcome
        process.kill()
        return await self._describe_exit(process.pid)

    async def close(self) -> None:
        """Kill all processes."""
        self._requests.close()
        for process in self._idle:
            process.kill()
        if self._watcher is not None:
            await self._watcher
        self._exits.close()
        await asyncio.to_thread(os.waitpid, self._server, 0)

    async def _take(self) -> AgentProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.reader.at_eof():
                return process
            process.writer.close()  # died while it was idle
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch_exits())
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [b"+"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        pid = int(await reader.readline() or 0)
        if not pid:
            writer.close()
            raise PoolBroken("the process from which agents are forked has ended")
        return AgentProcess(pid, reader, writer)

    async def _describe_exit(self, pid: int) -> Outcome:
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                code = await self._status(pid)
        except TimeoutError:
            return {"lost": f"process {pid} closed its connection"}
        finally:
            self._statuses.pop(pid, None)
        if code >= 0:
            return {"error": f"the agent ended its process with exit code {code}"}
        name = signal.Signals(-code).name
        return {"lost" if -code in KILLED_FROM_OUTSIDE else "error": f"the process of the agent was ended by {name}"}

    def _status(self, pid: int) -> "asyncio.Future[int]":
        return self._statuses.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _watch_exits(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._exits)
        try:
            while line := await reader.readline():
                pid, code = map(int, line.split())
                if not self._status(pid).done():
                    self._status(pid).set_result(code)
        finally:
            writer.close()


def _serve_forks(requests: socket.socket, exits: socket.socket, spec: str, function: AgentFunction) -> None:
    """Fork a process for each request and report exits, until the worker has closed its end."""
    os.setsid()  # signals from the terminal reach only the worker
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    wake, wakened = socket.socketpair()
    wakened.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    server, running = os.getpid(), set[int]()
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            wake.recv(4096)
            for pid, code in _ended_children():
                running.discard(pid)
                with suppress(BrokenPipeError):  # the worker has ended; its other connection says so too
                    exits.sendall(b"%d %d\n" % (pid, code))
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                for pid in running:
                    os.killpg(pid, signal.SIGKILL)
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for inherited in (requests, exits, wake, wakened):
                    inherited.close()
                _serve_attempts(socket.socket(fileno=descriptors[0]), server, spec, function)
            os.close(descriptors[0])
            running.add(pid)


def _ended_children() -> list[tuple[int, int]]:
    ended = []
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((child[0], os.waitstatus_to_exitcode(child[1])))
    except ChildProcessError:
        return ended
    return ended


def _serve_attempts(connection: socket.socket, server: int, spec: str, function: AgentFunction) -> NoReturn:
    """Run one attempt after the other, until the worker closes the connection."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.sendall(b"%d\n" % os.getpid())
    with asyncio.Runner() as runner:  # one event loop, because clients of the agent may live longer than an attempt
        for line in connection.makefile("rb"):
            outcome = _attempt(runner, spec, function, Assignment.from_json(json.loads(line)))
            sys.stdout.flush()
            connection.sendall(json.dumps(outcome).encode() + b"\n")
    os._exit(0)


def _attempt(runner: asyncio.Runner, spec: str, function: AgentFunction, assignment: Assignment) -> Outcome:
    try:
        with agent_failures(spec):
            result = function(assignment.task, assignment.endpoint)  # outside the loop: a plain agent may run its own
            score = runner.run(as_score_async(spec, result)) if isawaitable(result) else as_score(spec, result)
    except FunctionFailed as error:
        return {"error": str(error)}
    return {"reward": reward_to_json(score)}
