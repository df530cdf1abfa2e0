"""The agent over HTTP: OpenAI's chat completions, admission control, a playground page, and Prometheus metrics."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from itertools import count
from math import ceil
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect

from sleuth import __version__
from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.gateway.api import ApiError, error_response
from sleuth.gateway.chat_completions import ChatRequest
from sleuth.http.middleware import BearerAuth, MetricsMiddleware, RequestCheck, ServerMetrics
from sleuth.http.requests import cancel_on_disconnect, read_body
from sleuth.http.responses import JSON, add_problem_handlers, encode_json
from sleuth.page.document import THEME
from sleuth.serve.agent.completion import AnswerFormat, StreamingAnswer, whole_answer
from sleuth.serve.agent.live_episode import End, EpisodeRequest, LiveEpisode, LiveEpisodes
from sleuth.serve.agent.request import count_prompt_tokens, extract_question, parse_request

CHAT, MODELS, HEALTH, METRICS = "/v1/chat/completions", "/v1/models", "/health", "/metrics"
MAX_BODY_BYTES, MAX_BODY_SECONDS = 2**20, 30.0
SMOOTHING = 0.2  # weight of the last episode in the moving average of durations
QUEUED_PER_SLOT = 8

_STATIC = files("sleuth.serve.agent") / "static"
# The browser enforces that the page loads only its own files and contacts no other server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
SCRIPTS = ("main.js", "client.js", "transcript.js", "element.js")
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/playground/playground.css": ("playground.css", "text/css"),
    **{f"/playground/{name}": (name, "text/javascript") for name in SCRIPTS},
}
THEME_PATH = "/playground/theme.css"
PAGE_PATHS = frozenset({*PAGE_FILES, THEME_PATH})


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model: its name, its search index, and its creation time."""

    name: str
    index: str
    created: int


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Concurrent episodes, limits per request, the default temperature, and the longest wait for a slot.

    `max_tokens` and `max_prompt` further limit the sampled tokens and the prompt; None keeps the agent's limits.
    """

    slots: int = 64
    max_tokens: int | None = None
    max_prompt: int | None = None
    max_characters: int = 32_768
    temperature: float = 0.0
    wait: float = 60.0


class Admission:
    """Slots for `slots` episodes and a first-come-first-served queue, in which a request waits up to `wait` seconds."""

    def __init__(self, slots: int, wait: float) -> None:
        self.slots = slots
        self.wait = wait
        self.active = 0
        self._mean_seconds = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def acquire(self) -> Callable[[], None]:
        """Wait for a slot and return the function that releases it; raises ApiError 429 if the wait is too long."""
        if self.active < self.slots:
            self.active += 1
        else:
            await self._wait_in_queue()
        start = time.monotonic()

        def release() -> None:
            self._mean_seconds += SMOOTHING * (time.monotonic() - start - self._mean_seconds)
            self._hand_over()

        return release

    async def _wait_in_queue(self) -> None:
        if self.wait <= 0 or self.waiting >= QUEUED_PER_SLOT * self.slots or self._expected_wait() > self.wait:
            raise self._overloaded()
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.wait):
                await turn
        except BaseException as error:
            if not turn.cancelled():  # the slot was handed over at the same moment
                self._hand_over()
            elif turn in self._queue:
                self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._overloaded() from None
            raise

    def _hand_over(self) -> None:
        """Give the slot to the first request in the queue, or free the slot if the queue is empty."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.active -= 1

    def _expected_wait(self) -> float:
        """Estimate the wait in seconds for a request that arrives now."""
        return self._mean_seconds * (self.waiting + 1) / self.slots

    def _overloaded(self) -> ApiError:
        seconds = max(1, ceil(self._expected_wait() - self.wait))
        load = f"{self.active} questions are being answered and {self.waiting} wait"
        message = f"the server is full: {load}; retry in {seconds} s"
        return ApiError(429, message, headers={"Retry-After": str(seconds)})


class AgentMetrics(ServerMetrics):
    """Prometheus metrics: episodes by stop reason, tokens, searches, durations, refused and disconnected clients."""

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        registry = self.registry
        self._episodes = Counter("sleuth_episodes", "Episodes by stop reason.", ["stop"], registry=registry)
        self._tokens = Counter("sleuth_tokens", "Tokens, given or sampled.", ["origin"], registry=registry)
        self._searches = Counter("sleuth_searches", "Searches.", registry=registry)
        buckets = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # seconds
        self._durations = Histogram("sleuth_episode_seconds", "Episode duration.", buckets=buckets, registry=registry)
        self.overloaded = Counter("sleuth_overloaded", "Requests refused: the server was full.", registry=registry)
        self.disconnects = Counter("sleuth_disconnects", "Clients that disconnected early.", registry=registry)
        self.add_gauge("sleuth_under_way", "Questions being answered.", lambda: admission.active)
        self.add_gauge("sleuth_places", "Maximum number of concurrent questions.", lambda: admission.slots)
        self.add_gauge("sleuth_waiting", "Questions in the queue.", lambda: admission.waiting)

    def observe_episode(self, end: End) -> None:
        sampled = sum(end.trajectory.sampled)
        self._episodes.labels(end.stop).inc()
        self._tokens.labels("sampled").inc(sampled)
        self._tokens.labels("given").inc(len(end.trajectory.ids) - sampled)
        self._searches.inc(end.trajectory.searches)
        self._durations.observe(end.seconds)


@dataclass(frozen=True, slots=True)
class Api:
    """The endpoints of the server."""

    agent: Agent
    served_model: ServedModel
    limits: ServerLimits
    admission: Admission
    metrics: AgentMetrics
    _orders: "count[int]" = field(default_factory=count)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        yield
        await self.agent.engine.close()

    async def chat(self, request: Request) -> Response:
        body = await read_body(
            request.scope, request.receive, max_bytes=MAX_BODY_BYTES, seconds=MAX_BODY_SECONDS, remedy="shorten it"
        )
        wanted = parse_request(body, [tool.name for tool in self.agent.tools.tools])
        if wanted.model not in (None, self.served_model.name):
            raise self._unknown_model(str(wanted.model))
        count, most = wanted.n or 1, self.admission.slots
        if count > most:
            raise ApiError(400, f"n is {count}; the maximum is {most}, the number of concurrent questions", param="n")
        episode_request = self._episode_request(wanted)
        name, form = self.served_model.name, AnswerFormat(self.agent, wanted)
        async with AsyncExitStack() as stack:
            episodes = await stack.enter_async_context(LiveEpisodes(partial(self._start, episode_request), count))
            try:
                async with cancel_on_disconnect(request.receive):
                    await episodes.started()
                if wanted.stream:
                    stack.pop_all()  # the response ends the episodes
                    return StreamingAnswer(episodes, name, form, on_disconnect=self.metrics.disconnects.inc)
                async with cancel_on_disconnect(request.receive):
                    return _json(await whole_answer(episodes, name, form))
            except ClientDisconnect:
                self.metrics.disconnects.inc()
                raise
            except ApiError as error:
                if error.status == 429:
                    self.metrics.overloaded.inc()
                raise

    async def _start(self, request: EpisodeRequest, sample: int) -> LiveEpisode:
        """Wait for a slot and start the episode of a choice; its number is part of the seed."""
        release = await self.admission.acquire()
        sampled = replace(request, task=replace(request.task, sample=sample))
        return LiveEpisode(self.agent, sampled, next(self._orders), release, self.metrics.observe_episode)

    def _episode_request(self, wanted: ChatRequest) -> EpisodeRequest:
        limits = self.limits
        question = extract_question(wanted.messages, self.agent, limits.max_characters)
        context = self.agent.config.context_tokens
        tokens = count_prompt_tokens(question, self.agent)
        maximum = min(limits.max_prompt or context - 1, context - 1)
        if tokens > maximum:
            message = f"the prompt with this question has {tokens:,} tokens; the maximum is {maximum:,}, shorten it"
            raise ApiError(400, message, param="messages", code="context_length_exceeded")
        temperature = limits.temperature if wanted.temperature is None else wanted.temperature
        seed = secrets.randbits(32) if wanted.seed is None else wanted.seed
        bounds = [bound for bound in (limits.max_tokens, wanted.token_limit) if bound is not None]
        sampling = {name: value for name in ("top_p", "top_k", "min_p") if (value := getattr(wanted, name)) is not None}
        task = Task(question, seed=seed, temperature=temperature)
        return EpisodeRequest(task, min(bounds, default=None), sampling)

    async def models(self) -> Response:
        return _json({"object": "list", "data": [self._describe_model()]})

    async def model(self, name: str) -> Response:
        if name != self.served_model.name:
            raise self._unknown_model(name)
        return _json(self._describe_model())

    async def health(self) -> Response:
        load = {"under_way": self.admission.active, "places": self.admission.slots, "waiting": self.admission.waiting}
        return _json({"status": "ok", **load})

    async def prometheus(self) -> Response:
        return self.metrics.response()

    def _describe_model(self) -> dict[str, Any]:
        served, config = self.served_model, self.agent.config
        model = {"id": served.name, "object": "model", "created": served.created, "owned_by": "sleuth"}
        agent = {"index": served.index, "method": config.method, "searches": config.searches}
        limits = {"context_tokens": config.context_tokens, "max_tokens": self.limits.max_tokens}
        return {**model, "sleuth": {**agent, **limits}}

    def _unknown_model(self, name: str) -> ApiError:
        message = f"there is no model {name!r}; this server has {self.served_model.name!r}"
        return ApiError(404, message, param="model", code="model_not_found")


def application(
    agent: Agent, model: ServedModel, limits: ServerLimits, *, token: str | None = None, names: Collection[str] = ()
) -> FastAPI:
    """Build the server of an agent; without a token, the Host header must be an IP address or one of the names."""
    admission = Admission(limits.slots, limits.wait)
    api = Api(agent, model, limits, admission, AgentMetrics(admission))
    app = FastAPI(title="Sleuth agent", version=__version__, openapi_url=None, lifespan=api.lifespan)
    app.add_api_route(CHAT, api.chat, methods=["POST"], response_class=Response)
    app.add_api_route(MODELS, api.models, methods=["GET"], response_class=Response)
    app.add_api_route(f"{MODELS}/{{name:path}}", api.model, methods=["GET"], response_class=Response)
    app.add_api_route(HEALTH, api.health, methods=["GET"], response_class=Response)
    app.add_api_route(METRICS, api.prometheus, methods=["GET"], response_class=Response)
    for path in sorted(PAGE_PATHS):
        app.add_api_route(path, page_file, methods=["GET"], response_class=Response)
    add_problem_handlers(app, error_response, hint="; questions go to /v1/chat/completions")
    if token:
        app.add_middleware(BearerAuth, token=token, public=PAGE_PATHS | {HEALTH}, respond=error_response)
    app.add_middleware(RequestCheck, names=None if token else names, respond=error_response)
    app.add_middleware(MetricsMiddleware, metrics=api.metrics, paths=frozenset({CHAT, MODELS, HEALTH, METRICS, "/"}))
    return app


async def page_file(request: Request) -> Response:
    """Return a file of the playground page."""
    path = request.url.path
    if path == THEME_PATH:
        return Response(THEME, headers=PAGE_HEADERS, media_type="text/css")
    name, kind = PAGE_FILES[path]
    return Response((_STATIC / name).read_bytes(), headers=PAGE_HEADERS, media_type=kind)


def _json(content: object) -> Response:
    return Response(encode_json(content), media_type=JSON)
