"""The gateway: an HTTP server in a thread of the trainer's process, through which outside agents call the policy.

Requests wait for the engine in the engine's own event loop. While weights are updated they are held, not refused.
"""

import asyncio
import hmac
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sleuth.agent.tools import Toolbox
from sleuth.errors import EngineFailure, SearchUnavailable, SleuthError, UserError
from sleuth.gateway import anthropic, chat_completions, completions, responses
from sleuth.gateway.api import KEEP_ALIVE, Api, ApiError, StreamWriter, error_response
from sleuth.gateway.calls import Reply
from sleuth.gateway.endpoint import MODEL, Endpoint
from sleuth.gateway.frozen_model import FrozenModel
from sleuth.gateway.rollout import CLOSED, CallTimes, Rollout
from sleuth.http.middleware import LOOPBACK, RequestCheck
from sleuth.http.requests import cancel_on_disconnect, parse_body, read_body
from sleuth.http.responses import JSON, HttpProblem, add_problem_handlers, encode_json
from sleuth.http.server import BackgroundServer, authority, bind
from sleuth.records import Hit, Score
from sleuth.retrieval.service.server import check_texts, search
from sleuth.retrieval.wire import Limits, RetrieveRequest

APIS: dict[str, Api] = {
    "/chat/completions": chat_completions.API,
    "/completions": completions.API,
    "/responses": responses.API,
    "/messages": anthropic.API,
}
MAX_CLOSED = 100_000  # ids of ended rollouts, which are answered with 410 instead of 404
KEEP_ALIVE_SECONDS = 15.0  # proxies close connections that stay silent
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients otherwise repeat requests that failed with 5xx
SEARCH_LIMITS = Limits(queries=100, topk=100)
RETRIEVE_EXAMPLE = '{"queries": ["..."], "topk": 3, "return_scores": true}'
REWARD_EXAMPLE = '{"reward": 1.0}, or {"reward": 1.0, "turns": [0.5, ...], "parts": {"name": 0.5}}'

Result = TypeVar("Result")
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of requests: `calls` is the number of open requests of one rollout, `call_seconds` the time of a call."""

    body: int = 8 * 2**20
    body_seconds: float = 60.0
    calls: int = 256
    call_seconds: float = 600.0


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")


class RewardBody(_Strict):
    """The reward of an attempt, with optional rewards of its calls and parts to record."""

    reward: float
    turns: list[float] = []
    parts: dict[str, float] = {}


class RewardValue(_Strict):
    """The value of a reward event."""

    value: float


class RewardEvent(_Strict):
    """The form of Agent Lightning 1.0."""

    event_type: Annotated[str, Field(pattern="^reward$")]
    data: RewardValue


@dataclass(slots=True, eq=False)
class OpenRollout:
    """A rollout that accepts requests; its work runs in the event loop of the engine."""

    rollout: Rollout
    loop: asyncio.AbstractEventLoop
    search_failure: SleuthError | None = None
    _closed: bool = False
    _pending: set[Future[Any]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, work: Coroutine[Any, Any, Result], limit: float = inf) -> Future[Result]:
        """Run a coroutine in the engine's loop; raises ApiError if the attempt has ended or has `limit` requests."""
        try:
            return self._add(lambda: asyncio.run_coroutine_threadsafe(work, self.loop), limit)
        except ApiError:
            work.close()
            raise

    def hold(self, limit: float) -> Future[None]:
        """Count a request that another server answers until its future is cancelled, as it is when the attempt ends."""
        return self._add(Future, limit)

    def _add(self, start: Callable[[], Future[Result]], limit: float) -> Future[Result]:
        with self._lock:
            if self._closed or self.loop.is_closed():
                raise closed()
            if len(self._pending) >= limit:
                raise ApiError(429, f"{limit} requests of this rollout are open; wait for their replies")
            future = start()
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for future in list(self._pending):
            future.cancel()


class Gateway:
    """Serves rollouts over HTTP, from `start` to `stop`, in a thread of its own.

    `tools` answers searches, `helper` is a frozen model beside the policy, and `routes` are served too.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tools: Toolbox | None = None,
        helper: FrozenModel | None = None,
        limits: GatewayLimits = GatewayLimits(),
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._tools, self._helper, self._limits = tools, helper, limits
        self._attempts: dict[str, OpenRollout] = {}
        self._ended: dict[str, None] = {}  # in the order of their end
        listener = bind(host, port)
        self.url = f"http://{authority(host, listener.getsockname()[1])}"
        self._server = BackgroundServer(self._application(host, routes), listener)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._attempts):
            self.close(name)
        self._server.close()

    def open(self, rollout: Rollout) -> Endpoint:
        """Accept requests of a rollout; call it in the event loop of the engine."""
        self._attempts[rollout.id] = OpenRollout(rollout, asyncio.get_running_loop())
        return Endpoint(f"{self.url}/rollout/{rollout.id}/v1", rollout.key)

    def close(self, rollout_id: str) -> OpenRollout:
        """Refuse further requests of an open rollout, end those in flight, and return the attempt."""
        attempt = self._attempts.pop(rollout_id, None)
        if attempt is None:
            raise RuntimeError("this attempt has ended: it was finished before, or its gateway was closed")
        attempt.close()
        self._ended[rollout_id] = None
        while len(self._ended) > MAX_CLOSED:
            del self._ended[next(iter(self._ended))]
        return attempt

    def _application(self, host: str, routes: Sequence[BaseRoute]) -> Starlette:
        app = Starlette(lifespan=self._lifespan)
        for path, api in APIS.items():
            self._add(app, f"/rollout/{{id}}/v1{path}", partial(self._complete, path, api), "POST", api)
        self._add(app, "/rollout/{id}/v1/models", self._models)
        self._add(app, "/rollout/{id}/reward", self._reward, "POST")
        self._add(app, "/rollout/{id}/retrieve", self._retrieve, "POST")
        self._add(app, "/rollout/{id}", self._describe)
        self._add(app, "/health", self._health)
        app.router.routes.extend(routes)
        add_problem_handlers(app, error_response, hint="; the model is at /rollout/ID/v1")
        # Every rollout has a key, so that other machines may use any name of this one, and curl its default type.
        names = [host] if host in LOOPBACK else None
        app.add_middleware(RequestCheck, names=names, json_only=False, respond=error_response)
        return app

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        if self._helper is not None:
            await self._helper.close()

    def _add(self, app: Starlette, path: str, handler: Handler, method: str = "GET", api: Api | None = None) -> None:
        respond = error_response if api is None else api.error_response

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HttpProblem as problem:
                return respond(problem)

        app.router.routes.append(Route(path, handle, methods=[method]))

    def _attempt(self, request: Request) -> OpenRollout:
        """Return the attempt of a request; raises ApiError if it is unknown, has ended, or the key is wrong."""
        name, headers = request.path_params["id"], request.headers
        attempt = self._attempts.get(name)
        if attempt is None:
            if name in self._ended:
                raise closed()
            message = f"there is no rollout {name[:40]!r}; use the base URL that the attempt was started with"
            raise ApiError(404, message, code="rollout_not_found")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(key.encode(), attempt.rollout.key.encode()):
            problem = "wrong" if key else "missing"
            message = f"the key of this rollout is {problem}; send the api_key of the endpoint as a bearer token"
            raise ApiError(401, message, code="invalid_api_key")
        return attempt

    async def _body(self, request: Request) -> bytes:
        return await read_body(
            request.scope,
            request.receive,
            max_bytes=self._limits.body,
            seconds=self._limits.body_seconds,
            remedy="send less",
        )

    async def _complete(self, path: str, api: Api, request: Request) -> Response:
        attempt, limits = self._attempt(request), self._limits
        body = await self._body(request)
        if self._helper is not None and _model_of(body) == self._helper.model:
            held = attempt.hold(limits.calls)
            try:
                return await self._helper.forward(path, body, request, held, partial(_record_helper, attempt))
            except BaseException:
                held.cancel()
                raise
        received = time.perf_counter()
        parsed = api.parse(body)
        if not parsed.is_policy:
            known = MODEL if self._helper is None else f"{MODEL} (the trained model) or {self._helper.model}"
            message = f"there is no model {parsed.model[:80]!r}; use {known}, or {MODEL}/ROLE for a role of the agent"
            raise ApiError(404, message, param="model", code="model_not_found")
        rollout = attempt.rollout
        decode = rollout.policy.tokens.decode
        if parsed.stream:
            stream = _Stream(api.writer(parsed, decode), limits.call_seconds, rollout.times)
            await stream.start(attempt.submit(rollout.complete(parsed.call, stream.on_content), limits.calls), request)
            return stream
        submitted = time.perf_counter()
        reply = await self._wait(attempt.submit(rollout.complete(parsed.call), limits.calls), request)
        replied = time.perf_counter()
        response = _json(api.respond(parsed, reply, decode))
        times = rollout.times
        times.parse += submitted - received
        times.wait += replied - submitted
        times.encode += time.perf_counter() - replied
        return response

    async def _models(self, request: Request) -> Response:
        context = self._attempt(request).rollout.policy.config.context_tokens
        names = [MODEL] if self._helper is None else [MODEL, self._helper.model]
        model = {"object": "model", "created": int(time.time()), "owned_by": "sleuth", "max_model_len": context}
        return _json({"object": "list", "data": [{"id": name, **model} for name in names]})

    async def _reward(self, request: Request) -> Response:
        attempt = self._attempt(request)
        score = _parse_reward(await self._body(request))

        async def set_reward() -> None:
            attempt.rollout.set_reward(score)

        await self._wait(attempt.submit(set_reward(), self._limits.calls), request)
        return _json({"reward": score.episode_return})

    async def _retrieve(self, request: Request) -> Response:
        attempt, tools = self._attempt(request), self._tools
        if tools is None:
            raise ApiError(404, "this run has no index to search; set data.corpus or retrieval.index", code="no_index")
        params = parse_body(await self._body(request), RetrieveRequest, RETRIEVE_EXAMPLE)
        check_texts(params.queries, "queries", SEARCH_LIMITS.queries, SEARCH_LIMITS.characters)
        retriever = _RecordedSearch(attempt, tools, partial(self._wait, request=request), self._limits.calls)
        return Response(await search(retriever, params, tools.k, SEARCH_LIMITS), media_type=JSON)

    async def _describe(self, request: Request) -> Response:
        return _json(self._attempt(request).rollout.describe())

    async def _health(self, _: Request) -> Response:
        return _json({"status": "ok", "rollouts": len(self._attempts)})

    async def _wait(self, future: Future[Result], request: Request) -> Result:
        """Wait for work in the engine's loop; cancel it if the client disconnects or it takes too long."""
        try:
            async with asyncio.timeout(self._limits.call_seconds), cancel_on_disconnect(request.receive):
                await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)
        except TimeoutError:
            raise _too_slow(self._limits.call_seconds) from None
        finally:
            future.cancel()
        return _outcome(future)


@dataclass(frozen=True, slots=True)
class _RecordedSearch:
    """The run's retriever as an attempt uses it: in the engine's loop, measured and recorded."""

    attempt: OpenRollout
    tools: Toolbox
    wait: Callable[[Future[list[list[Hit] | SearchUnavailable]]], Awaitable[list[list[Hit] | SearchUnavailable]]]
    limit: int

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return await self.wait(self.attempt.submit(self._search(queries, k), self.limit))

    async def _search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        results: list[list[Hit] | SearchUnavailable] = []
        try:
            with self.tools.searches.measure():
                results = await self.tools.retriever.search(queries, k)
                for failure in results:
                    if isinstance(failure, SearchUnavailable):
                        raise failure
        except SearchUnavailable as failure:
            self.attempt.search_failure = failure
        except UserError as error:  # for example a search that is missing in a recording
            self.attempt.search_failure = error
            raise
        else:
            self.attempt.rollout.record_search(queries, [hits for hits in results if isinstance(hits, list)])
        return results


class _Stream(Response):
    """A reply as server-sent events; its call is cancelled if the client disconnects or it takes too long."""

    media_type = "text/event-stream"

    def __init__(self, writer: StreamWriter, seconds: float, times: CallTimes) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._times, self._started = times, time.perf_counter()
        self._writer, self._seconds = writer, seconds
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._items: asyncio.Queue[tuple[int, str] | Future[Reply]] = asyncio.Queue()
        self._first: tuple[int, str] | Future[Reply] | None = None
        self._future: Future[Reply] | None = None

    def on_content(self, index: int, text: str) -> None:
        """Receive a piece of the content, in the engine's loop."""
        self._put((index, text))

    async def start(self, future: Future[Reply], request: Request) -> None:
        """Wait for the first piece, so that a refused call gets the status of its error."""
        self._future = future
        future.add_done_callback(self._put)
        try:
            async with asyncio.timeout_at(self._ends), cancel_on_disconnect(request.receive):
                self._first = await self._items.get()
            if self._first is future:
                _outcome(future)
        except BaseException as error:
            future.cancel()
            if isinstance(error, TimeoutError):
                raise _too_slow(self._seconds) from None
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        assert self._future is not None  # noqa: S101  start has set it
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with cancel_on_disconnect(receive):
                await self._send_events(send)
            await send({"type": "http.response.body", "body": b""})
        except ClientDisconnect:
            return
        finally:
            self._times.wait += time.perf_counter() - self._started
            self._future.cancel()

    async def _send_events(self, send: Send) -> None:
        async def write(line: bytes) -> None:
            await send({"type": "http.response.body", "body": line, "more_body": True})

        await write(self._writer.start())
        item = self._first
        try:
            while not isinstance(item, Future):
                await write(KEEP_ALIVE if item is None else self._writer.content(*item))
                item = await self._next()
            last = self._writer.end(_outcome(item))
        except HttpProblem as problem:
            last = self._writer.error(problem)
        await write(last)

    async def _next(self) -> tuple[int, str] | Future[Reply] | None:
        """Return the next item, or None after a pause; raises ApiError if the call takes too long."""
        assert self._future is not None  # noqa: S101  start has set it
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(self._ends, self._loop.time() + KEEP_ALIVE_SECONDS)):
                item = await self._items.get()
            if self._loop.time() < self._ends or self._future.done():
                return item
        if self._loop.time() < self._ends:
            return None
        raise _too_slow(self._seconds)

    def _put(self, item: tuple[int, str] | Future[Reply]) -> None:
        with suppress(RuntimeError):  # the gateway was stopped
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)


def _record_helper(attempt: OpenRollout, text: str) -> None:
    async def record() -> None:
        attempt.rollout.record_helper(text)

    with suppress(ApiError):  # the attempt has ended
        attempt.submit(record())


def closed() -> ApiError:
    return ApiError(410, CLOSED, code="rollout_closed")


def _too_slow(seconds: float) -> ApiError:
    return ApiError(504, f"the call took more than {seconds:g} s and was cancelled", code="timeout", headers=NO_RETRY)


def _outcome(future: Future[Result]) -> Result:
    """Return the result of finished work; raises ApiError if it failed."""
    if future.cancelled():
        raise closed()
    match future.exception():
        case None:
            return future.result()
        case EngineFailure() | UserError() as failure:
            raise ApiError(500, str(failure), code="engine_failed", headers=NO_RETRY)
        case error:
            raise error


def _parse_reward(body: bytes) -> Score:
    """Parse a posted reward; raises ApiError if it is not a finite number."""
    is_event = b'"event_type"' in body
    try:
        if is_event:
            return Score(parse_body(body, RewardEvent, REWARD_EXAMPLE).data.value)
        parsed = parse_body(body, RewardBody, REWARD_EXAMPLE)
    except HttpProblem as problem:
        raise ApiError(400, str(problem), param="reward", code="invalid_reward") from None
    return Score(parsed.reward, parsed.parts, tuple(parsed.turns))


def _model_of(body: bytes) -> str | None:
    try:
        value = from_json(body)
    except ValueError:
        return None  # reported by the parser of the API
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


def _json(content: object) -> Response:
    return Response(encode_json(content), media_type=JSON)
