"""Launchers that run agents in workers: processes on this machine, or `sleuth worker` anywhere."""

import hmac
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.agent_function import load_agent
from sleuth.gateway.endpoint import TOKEN_ENV, Endpoint
from sleuth.gateway.launcher import AttemptLost
from sleuth.gateway.task_queue import QueueClosed, TaskQueue, Timing, UnknownAttempt, UnknownWorker
from sleuth.gateway.worker import USER_ERROR
from sleuth.http.requests import cancel_on_disconnect, parse_body, read_body
from sleuth.http.responses import JSON, HttpProblem, encode_json
from sleuth.records import Score
from sleuth.runs.atomic import atomic_write, write_private

TOKEN_FILE = "gateway-token"  # noqa: S105 (the name of a file)
MAX_BODY = 2**20
BODY_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between two starts of the program of local workers
STDERR = 2  # where agents print: not into the output of this command


class RemoteWorkers:
    """The launcher of `agent.run = "worker"`: attempts wait for `sleuth worker` processes."""

    def __init__(self, token: str, timing: Timing | None = None) -> None:
        self.queue = TaskQueue(timing)
        self.routes = worker_routes(self.queue, token)

    def start(self, url: str) -> None:
        sys.stderr.write(
            f"sleuth: tasks wait for workers: sleuth worker --gateway {url} --agent import:package.function\n"
        )

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        return await self.queue.launch(task, endpoint, deadline)

    def close(self) -> None:
        """End the requests of the workers, which then wait for the next run."""
        self.queue.close()


class LocalWorkers:
    """The launcher of `agent.workers`: processes on this machine, which end with this one.

    One program keeps the connection to the gateway and runs each attempt in a process of its own. If that program ends,
    it is started again.
    """

    def __init__(self, spec: str, count: int, timing: Timing | None = None) -> None:
        load_agent(spec)  # reports a wrong function before the run
        self._spec, self._count = spec, count
        self._token = secrets.token_urlsafe(24)
        self._program: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self.queue = TaskQueue(timing)
        self.routes = worker_routes(self.queue, self._token)

    def start(self, url: str) -> None:
        threading.Thread(target=self._supervise, args=(url,), name="local workers", daemon=True).start()

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        return await self.queue.launch(task, endpoint, deadline)

    def close(self) -> None:
        self._closed.set()
        if self._program is not None:
            self._program.kill()  # its processes notice, and end as well

    def _supervise(self, url: str) -> None:
        command = [sys.executable, "-P", "-m", "sleuth.gateway.worker", "--gateway", url, "--agent", self._spec]
        command += ["--processes", "--concurrency", str(self._count), "--parent", str(os.getpid())]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        environment = {**os.environ, TOKEN_ENV: self._token, "PYTHONPATH": paths}
        pause = 0.0
        while not self._closed.wait(pause):
            started = time.monotonic()
            self._program = subprocess.Popen(  # noqa: S603 (our own program)
                command, stdin=subprocess.DEVNULL, stdout=STDERR, env=environment
            )
            if self._closed.is_set():
                self._program.kill()
            code = self._program.wait()
            if self._closed.is_set():
                return
            self.queue.dismiss_all()
            if code == USER_ERROR:
                self.queue.fail(ConfigError("the workers of agent.run could not start; see the message above"))
                return
            sys.stderr.write(f"sleuth: the program of the workers ended with exit code {code}; it is started again\n")
            pause = (
                FIRST_PAUSE
                if time.monotonic() - started > LONGEST_PAUSE
                else min(2 * pause + FIRST_PAUSE, LONGEST_PAUSE)
            )


class Registration(BaseModel):
    name: Annotated[str, Field(max_length=200)]


class Body(BaseModel):
    worker: str


class Pull(Body):
    count: Annotated[int, Field(ge=1)] = 1


class Heartbeat(Body):
    running: list[str]
    stopping: bool = False


class Reward(BaseModel):
    total: FiniteFloat
    parts: dict[str, FiniteFloat] = {}
    turns: tuple[FiniteFloat, ...] = ()


class Result(Body):
    """The end of an attempt: a reward (null: none), the error of the agent, or how its process was lost."""

    attempt: str
    reward: Reward | None = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    lost: Annotated[str, Field(max_length=1000)] | None = None

    @property
    def outcome(self) -> Score | FunctionFailed | AttemptLost | None:
        if self.lost is not None:
            return AttemptLost(self.lost)
        if self.error is not None:
            return FunctionFailed(self.error)
        return None if self.reward is None else Score(self.reward.total, self.reward.parts, self.reward.turns)


Answer = Callable[[Any, Request], Awaitable[object]]


def worker_routes(queue: TaskQueue, token: str) -> list[Route]:
    """The paths that workers call; each requires the token."""

    def route(name: str, body: type[BaseModel], expected: str, answer: Answer) -> Route:
        async def handle(request: Request) -> Response:
            _require_token(request, token)
            content = await read_body(
                request.scope, request.receive, max_bytes=MAX_BODY, seconds=BODY_SECONDS, remedy="shorten it"
            )
            try:
                reply = await answer(parse_body(content, body, expected), request)
            except UnknownWorker as error:
                raise HttpProblem(404, str(error)) from error
            except UnknownAttempt as error:
                raise HttpProblem(409, str(error)) from error
            except QueueClosed as error:
                raise HttpProblem(503, str(error)) from error
            return Response(encode_json(reply), media_type=JSON)

        return Route(f"/worker/{name}", handle, methods=["POST"])

    async def register(body: Registration, _: Request) -> object:
        worker = queue.register(body.name)
        return {"worker": worker.id, "heartbeat": queue.timing.heartbeat, "poll": queue.timing.poll}

    async def pull(body: Pull, request: Request) -> object:
        async with cancel_on_disconnect(request.receive):
            assignments = await queue.pull(body.worker, queue.timing.poll, body.count)
        return {"assignments": [assignment.to_json() for assignment in assignments]}

    async def heartbeat(body: Heartbeat, _: Request) -> object:
        return {"stop": queue.heartbeat(body.worker, body.running, stopping=body.stopping)}

    async def result(body: Result, _: Request) -> object:
        queue.finish(body.worker, body.attempt, body.outcome)
        return {}

    async def leave(body: Body, _: Request) -> object:
        queue.leave(body.worker)
        return {}

    return [
        route("register", Registration, '{"name": "host:1234"}', register),
        route("pull", Pull, '{"worker": ID, "count": 1}', pull),
        route("heartbeat", Heartbeat, '{"worker": ID, "running": [ID, ...]}', heartbeat),
        route("result", Result, '{"worker": ID, "attempt": ID, "reward": {"total": 1.0}}', result),
        route("leave", Body, '{"worker": ID}', leave),
    ]


def _require_token(request: Request, token: str) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise HttpProblem(401, f"the token is missing or wrong; set {TOKEN_ENV} to the token of the training run")


def worker_token(folder: Path | None) -> str:
    """The token of workers: from the environment, else one that is kept in the folder of the run."""
    if token := os.environ.get(TOKEN_ENV, "").strip():
        return token
    path = None if folder is None else folder / TOKEN_FILE
    if path is not None and path.is_file() and (token := path.read_text().strip()):
        return token
    token = secrets.token_urlsafe(24)
    if path is not None:
        with atomic_write(path) as temporary:
            write_private(temporary, f"{token}\n".encode())
        sys.stderr.write(f"sleuth: {path} has the token of workers; set {TOKEN_ENV} to it where they run\n")
    return token
