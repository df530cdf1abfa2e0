"""The retrieval server: search and pages over HTTP for clients of Search-R1 and its descendants."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI, Request, Response
from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth import __version__
from sleuth.errors import SearchUnavailable
from sleuth.http.middleware import SECONDS, BearerAuth, MetricsMiddleware, RequestCheck, ServerMetrics
from sleuth.http.requests import cancel_on_disconnect, parse_body, read_body
from sleuth.http.responses import (
    CLIENT_CLOSED_REQUEST,
    JSON,
    HttpProblem,
    add_problem_handlers,
    encode_json,
    problem_response,
)
from sleuth.http.server import authority, reachable_host
from sleuth.records import Hit
from sleuth.retrieval.cache import CachedRetriever
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service import openapi
from sleuth.retrieval.service.batching import BatchingRetriever, Overloaded
from sleuth.retrieval.service.openapi import ShardStatus
from sleuth.retrieval.wire import AccessRequest, Limits, RetrieveRequest, Row, passage_row, scored_row
from sleuth.runs.atomic import atomic_write

RERANK_CANDIDATES = 10  # candidates of the rerank variant if the client does not give a number
ROWS_PER_STEP = 512  # rows encoded (about a millisecond) before other requests get a turn


class PageLookup(Protocol):
    """Looks up whole pages by URL, None if unknown; called from several threads."""

    def get(self, url: str) -> Row | None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """Description of the index that a server reports at /readyz."""

    index: str
    kind: str
    passages: int


ShardStatuses = Callable[[], Awaitable[list[ShardStatus]]]


class RetrievalMetrics(ServerMetrics):
    """Prometheus metrics of a retrieval server."""

    def __init__(self) -> None:
        super().__init__()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.queries = counter("sleuth_queries", "Queries received.")
        self.unavailable = counter("sleuth_unavailable", "Queries that failed.")
        self.overloaded = counter("sleuth_overloaded", "Requests refused because the queue was full or too slow.")
        self._batch = histogram(
            "sleuth_batch_queries", "Queries per batch.", buckets=[2.0**power for power in range(13)]
        )
        self._searching = histogram("sleuth_search_seconds", "Search time of a batch.", buckets=SECONDS)

    def observe_batch(self, queries: int, seconds: float) -> None:
        """Record the size and duration of one batch."""
        self._batch.observe(queries)
        self._searching.observe(seconds)


def application(
    retriever: Retriever,
    facts: Facts,
    *,
    k: int = 3,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    pages: PageLookup | None = None,
    token: str | None = None,
    cache: int = 0,
    names: Collection[str] = (),
    concurrent: int = 1,
    shard_status: ShardStatuses | None = None,
) -> FastAPI:
    """Build the app that serves a retriever, with `k` hits per query by default and a cache of `cache` searches.

    Queries of concurrent requests are batched, and `concurrent` batches are searched at a time. `shard_status` tells
    which replicas of a cluster are ready. The Host header may be localhost, an IP address or one of `names`;
    with a token, any name is accepted.
    """
    metrics = RetrievalMetrics()
    batching = BatchingRetriever(
        retriever,
        batch=limits.batch,
        concurrent=concurrent,
        waiting=limits.waiting,
        characters=limits.waiting_characters,
        patience=limits.waiting_seconds,
        observer=metrics.observe_batch,
    )
    metrics.add_gauge("sleuth_queued_queries", "Queries waiting for a batch.", lambda: batching.queued)
    retriever = batching
    if cache:
        # The cache comes before the queue, so cached results never wait.
        retriever = cached = CachedRetriever(batching, cache)
        metrics.add_gauge("sleuth_cached_queries", "Queries answered from the cache.", lambda: cached.counts.hits)
    api = _Api(retriever, metrics, facts, k, limits, pages, shard_status)
    app = FastAPI(
        title="Sleuth retriever",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
    )
    retrieve, access = openapi.describe_retrieve(limits, k, RERANK_CANDIDATES), openapi.describe_access(limits)
    app.post("/retrieve", response_class=Response, **retrieve)(api.retrieve)
    app.post("/access", response_class=Response, **access)(api.access)
    app.get("/healthz", **openapi.HEALTHZ)(api.healthz)
    app.get("/readyz", **openapi.READYZ)(api.readyz)
    app.get("/metrics", response_class=Response, **openapi.METRICS)(api.metrics_page)
    app.add_route("/docs", openapi.DocsPage(limits, needs_token=bool(token)).respond, include_in_schema=False)
    add_problem_handlers(app, hint="; see /docs")
    app.add_middleware(_DirectRoute, path="/retrieve", respond=api.retrieve)
    if token:
        app.add_middleware(BearerAuth, token=token)
    app.add_middleware(RequestCheck, names=None if token else names)
    app.add_middleware(MetricsMiddleware, metrics=metrics, paths=frozenset(app.openapi()["paths"]))
    return app


@contextmanager
def advertise(folder: Path, host: str, port: int) -> Iterator[Path]:
    """Keep `Host{ip}_IP{port}.txt` with `ip:port` in a shared folder, where ASearcher's clients look for servers."""
    path = folder / f"Host{reachable_host(host)}_IP{port}.txt"
    with atomic_write(path) as temporary:
        temporary.write_text(authority(host, port), encoding="utf-8")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Api:
    retriever: Retriever
    metrics: RetrievalMetrics
    facts: Facts
    k: int
    limits: Limits
    pages: PageLookup | None
    shard_status: ShardStatuses | None

    async def retrieve(self, request: Request) -> Response:
        """Passages for queries."""
        params = parse_body(await self._body(request), RetrieveRequest, openapi.RETRIEVE_EXAMPLE)
        check_texts(params.queries, "queries", self.limits.queries, self.limits.characters)
        self.metrics.queries.inc(len(params.queries))
        try:
            async with cancel_on_disconnect(request.receive):
                body = await search(self.retriever, params, self.k, self.limits)
        except QueriesFailed as error:
            self.metrics.unavailable.inc(error.count)
            raise
        except Overloaded as error:
            self.metrics.overloaded.inc()
            # Not 429: most clients of this API retry a 503 only.
            raise HttpProblem(503, str(error), {"Retry-After": str(max(1, ceil(error.seconds)))}) from None
        return Response(body, media_type=JSON)

    async def access(self, request: Request) -> Response:
        """Pages by URL."""
        pages = self.pages
        if pages is None:
            raise HttpProblem(404, "this server has no pages; start it with --pages FILE (JSONL of url and contents)")
        params = parse_body(await self._body(request), AccessRequest, openapi.ACCESS_EXAMPLE)
        check_texts(params.urls, "urls", self.limits.urls, self.limits.characters)
        body = await asyncio.to_thread(lambda: encode_json({"result": [pages.get(url) for url in params.urls]}))
        return Response(body, media_type=JSON)

    async def healthz(self) -> openapi.Alive:
        """Whether the process answers."""
        return openapi.Alive(status="ok")

    async def readyz(self) -> openapi.Ready:
        """The index that is served."""
        shards = None if self.shard_status is None else await self.shard_status()
        for number, shard in enumerate(shards or (), 1):
            if not shard.ready:
                name = f"shard {number} of {len(shards or ())}"
                raise HttpProblem(503, f"{name} has no ready replica; searches wait until Ray has replaced one")
        return openapi.Ready(status="ready", **asdict(self.facts), version=__version__, shards=shards)

    async def metrics_page(self) -> Response:
        """Counts and times, for Prometheus."""
        return self.metrics.response()

    async def _body(self, request: Request) -> bytes:
        limits, remedy = self.limits, "send fewer queries at once"
        return await read_body(
            request.scope, request.receive, max_bytes=limits.body, seconds=limits.body_seconds, remedy=remedy
        )


class QueriesFailed(HttpProblem):
    """Some queries of a request failed, which fails the whole request."""

    def __init__(self, failures: Sequence[SearchUnavailable], queries: int) -> None:
        super().__init__(503, f"{len(failures)} of {queries} queries failed: {failures[0].cause}")
        self.count = len(failures)


async def search(retriever: Retriever, params: RetrieveRequest, default_k: int, limits: Limits) -> bytes:
    """Search all queries of a request and return the encoded hits; raises HttpProblem."""
    queries, scored = params.queries, params.return_scores
    if params.reranks:
        k, name = params.topk_rerank or default_k, "topk_retrieval"
        # A retriever with a cross-encoder returns its candidates reranked, others in the order of the index.
        depth = max(k, params.topk_retrieval or RERANK_CANDIDATES)
        row = _scored_contents if scored else lambda hit: hit.passage.contents
    else:
        k, name = params.topk or default_k, "topk"
        depth, row = k, scored_row if scored else lambda hit: passage_row(hit.passage)
    if depth > limits.topk:
        raise HttpProblem(422, f"{name} is {depth if depth < 10**15 else 'huge'}, above the limit of {limits.topk:,}")
    if len(queries) * depth > limits.hits:
        exceeded = f"exceed the limit of {limits.hits:,} hits per response; send fewer queries at once"
        raise HttpProblem(422, f"{len(queries):,} queries with {depth:,} hits each {exceeded}")
    answers = await retriever.search(queries, depth)
    failures = [answer for answer in answers if isinstance(answer, SearchUnavailable)]
    if failures:
        raise QueriesFailed(failures, len(queries))
    return await encode_results((hits[:k] for hits in answers if isinstance(hits, list)), row)


def check_texts(texts: Sequence[str], name: str, most: int, longest: int) -> None:
    """Raise HttpProblem if there are more than `most` texts, or one of more than `longest` characters."""
    if len(texts) > most:
        raise HttpProblem(422, f"{name} has {len(texts):,} entries, above the limit of {most:,} per request")
    for place, text in enumerate(texts):
        if len(text) > longest:
            raise HttpProblem(
                422, f"{name}.{place} has {len(text):,} characters, above the limit of {longest:,}; shorten it"
            )


class _DirectRoute:
    """Middleware that calls the handler of POSTs to one path directly; FastAPI's routing costs more than a search."""

    def __init__(self, app: ASGIApp, path: str, respond: Callable[[Request], Awaitable[Response]]) -> None:
        self._app, self._path, self._respond = app, path, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            response = await self._respond(Request(scope, receive))
        except HttpProblem as problem:
            response = problem_response(problem)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_CLOSED_REQUEST)
        return await response(scope, receive, send)


async def encode_results(results: Iterable[list[Hit]], row: Callable[[Hit], object]) -> bytes:
    """Encode the response in steps, so that a large response does not block other requests."""
    pieces, rows = [], 0
    for hits in results:
        pieces.append(encode_json([row(hit) for hit in hits]))
        rows += len(hits)
        if rows >= ROWS_PER_STEP:
            await asyncio.sleep(0)
            rows = 0
    return b'{"result":[' + b",".join(pieces) + b"]}"


def _scored_contents(hit: Hit) -> Row:
    return {"document": hit.passage.contents, "score": hit.score}
