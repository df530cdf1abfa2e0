"""sleuth worker: pull tasks from the gateway of a training run, run the agent, and return rewards.

`python -m sleuth.gateway.worker` needs only httpx and what the agent imports.
"""

import argparse
import asyncio
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import httpx

from sleuth.credentials import authorization_header, token_from_env
from sleuth.errors import FunctionFailed, InputError, SleuthError, UserError
from sleuth.gateway.agent_function import AgentFunction, LoopThread, call_agent, load_agent
from sleuth.gateway.agent_processes import Outcome, PoolBroken, ProcessPool
from sleuth.gateway.assignment import Assignment, reward_to_json
from sleuth.gateway.endpoint import TOKEN_ENV

CONNECT_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
PARENT_SECONDS = 0.5  # between two looks at the parent
USER_ERROR = 2
MAX_THREADS = 4096

Result = TypeVar("Result")
log = logging.getLogger("sleuth.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker runs, and for which gateway.

    After SIGTERM, attempts have `grace` seconds to finish. With `parent`, the worker ends when that process ends.
    """

    gateway: str
    agent: str
    token: str
    concurrency: int = 16
    processes: bool = False
    grace: float = 30.0
    parent: int | None = None


class Executor(Protocol):
    """Runs the agent."""

    async def run(self, assignment: Assignment) -> Outcome:
        """Run an attempt to its end; if this is cancelled, stop it."""

    async def close(self) -> None:
        """Stop all attempts."""


class ThreadExecutor:
    """Runs the agent in this process: an async function in an event loop of its own, a plain one in threads."""

    def __init__(self, spec: str, function: AgentFunction) -> None:
        self._spec, self._function = spec, function
        self._loop = LoopThread("agents")  # an agent that blocks it does not stop heartbeats
        self._threads = ThreadPoolExecutor(MAX_THREADS, "agent")

    async def run(self, assignment: Assignment) -> Outcome:
        return await asyncio.wrap_future(self._loop.submit(self._attempt(assignment)))

    async def _attempt(self, assignment: Assignment) -> Outcome:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        try:
            score = await call_agent(self._spec, self._function, assignment.task, assignment.endpoint, in_thread)
        except FunctionFailed as error:
            return {"error": str(error)}
        return {"reward": reward_to_json(score)}

    async def close(self) -> None:
        self._loop.close()


class Unregistered(SleuthError):
    """The gateway does not know this worker: it was started anew."""


class Refused(SleuthError):
    """The gateway refuses the result of an attempt."""


class Worker:
    """Pulls assignments while it has free slots, and reports which attempts it runs."""

    def __init__(self, options: WorkerOptions, executor: Executor) -> None:
        self._options, self._executor = options, executor
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._free = asyncio.Semaphore(options.concurrency)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._id = ""
        self._broken: PoolBroken | None = None
        headers = authorization_header(options.token, "the token of the gateway")
        self._client = httpx.AsyncClient(base_url=options.gateway.rstrip("/"), headers=headers)

    def stop(self) -> None:
        """Take no more tasks; called again, also stop the running ones."""
        if self._stop.is_set():
            for task in self._running.values():
                task.cancel()
        elif self._running:
            log.info("stopping: %d attempts have %g s to finish", len(self._running), self._options.grace)
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped; connect again whenever the gateway has vanished."""
        async with self._client:
            while not self._stop.is_set():
                reply = await self._unless_stopped(self._ask("register", name=self._name))
                if reply is not None:
                    self._id = reply["worker"]
                    log.info("worker %s is connected to %s", self._name, self._options.gateway)
                    await self._work(reply["heartbeat"], reply["poll"])
        if self._broken is not None:
            raise self._broken

    async def _work(self, heartbeat: float, poll: float) -> None:
        beating = asyncio.create_task(self._beat(heartbeat))
        try:
            while await self._unless_stopped(self._free.acquire()) and not self._stop.is_set():
                await self._pull(poll)
            if self._running:
                await asyncio.wait(self._running.values(), timeout=self._options.grace)
            await self._cancel(list(self._running))
            await asyncio.wait_for(self._ask("leave"), CONNECT_SECONDS)
        except (Unregistered, TimeoutError) as error:
            log.info("%s", error or "the gateway does not answer")
        finally:
            beating.cancel()
            await self._cancel(list(self._running))

    async def _pull(self, poll: float) -> None:
        """Wait for assignments and start them, in the slot that was acquired and in others that are free."""
        count = 1
        while not self._free.locked():
            await self._free.acquire()
            count += 1
        pull = asyncio.create_task(self._ask("pull", seconds=poll + CONNECT_SECONDS, count=count))
        rows: list[dict[str, Any]] = []
        try:
            await self._unless_stopped(asyncio.wait({pull}))
            if not pull.done():
                # The gateway answers the pull now, perhaps with tasks that it has just assigned.
                await asyncio.wait_for(self._send_heartbeat(), CONNECT_SECONDS)
            rows = (await asyncio.wait_for(pull, None if pull.done() else CONNECT_SECONDS))["assignments"]
        finally:
            pull.cancel()
            for _ in range(count - len(rows)):
                self._free.release()
        for row in rows:
            assignment = Assignment.from_json(row, self._options.gateway)
            task = asyncio.create_task(self._attempt(assignment))
            self._running[assignment.id] = task
            task.add_done_callback(lambda _: self._free.release())

    async def _attempt(self, assignment: Assignment) -> None:
        label = f"{assignment.task.question.id}, sample {assignment.task.sample}"
        started = time.monotonic()
        try:
            outcome = await self._executor.run(assignment)
            problem = outcome.get("error") or outcome.get("lost")
            ended = f"failed: {problem}" if problem else f"reward {(outcome['reward'] or {}).get('total')}"
            log.info("%s: %s (%.1f s)", label, ended, time.monotonic() - started)
            await self._ask("result", attempt=assignment.id, **outcome)
        except PoolBroken as error:
            self._broken = error
            self._stop.set()
        except Refused as error:
            log.info("%s: %s", label, error)
        except Unregistered:
            log.info("%s: the gateway was started anew; its result is dropped", label)
        except asyncio.CancelledError:
            log.info("%s: stopped after %.1f s", label, time.monotonic() - started)
        finally:
            self._running.pop(assignment.id, None)

    async def _beat(self, seconds: float) -> None:
        try:
            while True:
                await asyncio.sleep(seconds)
                await self._send_heartbeat()
        except Unregistered:
            await self._cancel(list(self._running))  # slots are free again, and the next pull registers anew

    async def _send_heartbeat(self) -> None:
        reply = await self._ask("heartbeat", running=list(self._running), stopping=self._stop.is_set())
        await self._cancel(reply["stop"])

    async def _cancel(self, attempts: list[str]) -> None:
        tasks = [self._running[each] for each in attempts if each in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def _ask(self, what: str, seconds: float = CONNECT_SECONDS, **body: object) -> dict[str, Any]:
        """Send a request until the gateway answers it."""
        pause = FIRST_PAUSE
        if what != "register":
            body["worker"] = self._id
        while True:
            try:
                reply = await self._client.post(f"/worker/{what}", json=body, timeout=seconds)
                problem = "" if reply.status_code < 500 else f"status {reply.status_code}"
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            if not problem:
                break
            if pause == FIRST_PAUSE:
                log.info("the gateway does not answer %s (%s); trying again", what, problem)
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)
        if reply.is_success:
            content: dict[str, Any] = reply.json()
            return content
        raise self._problem(what, reply)

    def _problem(self, what: str, reply: httpx.Response) -> Exception:
        sentence = f"{self._options.gateway} answered {what} with status {reply.status_code}: {_message(reply)}"
        if what == "register" or reply.status_code == httpx.codes.UNAUTHORIZED:
            return InputError(sentence)
        return Unregistered(sentence) if reply.status_code == httpx.codes.NOT_FOUND else Refused(sentence)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result, or None if the worker is stopped first."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for each in (task, stopped):
            each.cancel()
        await asyncio.wait({task, stopped})
        return None if task.cancelled() else task.result()


def _message(reply: httpx.Response) -> str:
    """The sentence of an error, in the format of OpenAI or of Sleuth's other servers."""
    try:
        body = reply.json()
        return str(body["error"]["message"] if "error" in body else body["detail"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]


def run_worker(options: WorkerOptions) -> None:
    """Run a worker until SIGTERM or SIGINT; attempts then have `options.grace` seconds, or are handed back."""
    if not options.gateway.startswith(("http://", "https://")):
        raise InputError(f"the gateway is {options.gateway!r}; expected its address, such as http://127.0.0.1:9100")
    function = load_agent(options.agent)
    executor = (ProcessPool if options.processes else ThreadExecutor)(options.agent, function)

    if options.parent is not None:
        threading.Thread(target=_end_with, args=(options.parent,), name="parent", daemon=True).start()

    async def work() -> None:
        worker = Worker(options, executor)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        try:
            await worker.run()
        finally:
            await executor.close()

    asyncio.run(work())


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def start_logging(level: int = logging.INFO) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    for name in ("httpx", "httpx2"):  # of this worker, and of the agent's OpenAI client
        logging.getLogger(name).setLevel(logging.WARNING)


def main(arguments: list[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m sleuth.gateway.worker", description=__doc__)
    parser.add_argument("--gateway", required=True, metavar="URL", help="address of the gateway")
    parser.add_argument("--agent", required=True, metavar="import:package.function", help="the agent")
    parser.add_argument("--concurrency", type=int, default=16, help="attempts at once (default: %(default)s)")
    parser.add_argument("--processes", action="store_true", help="run each attempt in a process of its own")
    parser.add_argument("--token-env", default=TOKEN_ENV, metavar="NAME", help="variable with the gateway's token")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to finish attempts after SIGTERM")
    parser.add_argument("--parent", type=int, metavar="PID", help="end at once when this is no longer the parent")
    given = parser.parse_args(arguments)
    start_logging(logging.INFO if given.parent is None else logging.WARNING)
    try:
        token = token_from_env(given.token_env) or ""
        choices = given.concurrency, given.processes, given.grace, given.parent
        run_worker(WorkerOptions(given.gateway, given.agent, token, *choices))
    except UserError as error:
        sys.stderr.write(f"sleuth: {error}\n")
        return USER_ERROR
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of agents that never return do not keep the worker alive
