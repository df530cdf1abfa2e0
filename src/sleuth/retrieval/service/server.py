"""The search engine over HTTP: what the clients of Search-R1 and its descendants call, and how operators watch it."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sleuth import __version__
from sleuth.errors import SearchUnavailable, UserError
from sleuth.records import Hit
from sleuth.retrieval.cache import CachedRetriever
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service import openapi, problems
from sleuth.retrieval.service.answers import encoded, encoded_hits, parsed
from sleuth.retrieval.service.direct import Direct
from sleuth.retrieval.service.gather import Gathered, Overloaded
from sleuth.retrieval.service.guard import Guarded
from sleuth.retrieval.service.limits import Limits, Refused
from sleuth.retrieval.service.manual import Manual
from sleuth.retrieval.service.metrics import Measured, Metrics
from sleuth.retrieval.service.presence import WhileConnected
from sleuth.retrieval.service.request_check import RequestCheck
from sleuth.retrieval.wire import AccessRequest, RetrieveRequest, Row, reranked, row_of, scored

CANDIDATES = 10  # of the rerank variant, where the client does not say
ACCESS_EXPECTED = '{"urls": ["..."]}'


class Pages(Protocol):
    """Whole pages by url; safe to ask from many threads."""

    def get(self, url: str) -> Row | None:
        """The page at a url, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of the index it serves."""

    index: str
    kind: str
    passages: int


def application(
    retriever: Retriever,
    facts: Facts,
    *,
    k: int = 3,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    pages: Pages | None = None,
    token: str | None = None,
    cache: int = 0,
    names: Collection[str] = (),
) -> FastAPI:
    """The server of a retriever: `k` hits a query where the client does not say, the last `cache` searches kept.

    `names` are those it may be called by besides localhost and addresses; with a token it may be called by any.

    Requests are gathered here: the retriever itself is asked for one batch at a time.
    """
    metrics = Metrics()
    desk = _Desk(_gathered(retriever, limits, cache, metrics), metrics, facts, k, limits, pages)
    app = FastAPI(
        title="Sleuth retriever",
        version=__version__,
        description=openapi.DESCRIPTION,
        docs_url=None,  # the framework's own pages run script from another host
        redoc_url=None,
    )
    asked = openapi.retrieve(limits, k, CANDIDATES)
    app.add_api_route("/retrieve", desk.retrieve, methods=["POST"], response_class=Response, **asked)
    app.add_api_route("/access", desk.access, methods=["POST"], response_class=Response, **openapi.access(limits))
    app.add_api_route("/healthz", desk.healthz, methods=["GET"], **openapi.healthz())
    app.add_api_route("/readyz", desk.readyz, methods=["GET"], **openapi.readyz())
    app.add_api_route("/metrics", desk.figures, methods=["GET"], response_class=Response, **openapi.metrics())
    app.add_route("/docs", Manual(limits, guarded=bool(token)).answer, include_in_schema=False)
    app.exception_handler(Refused)(problems.refused)
    app.exception_handler(ClientDisconnect)(problems.left)
    app.exception_handler(UserError)(problems.out_of_order)
    app.exception_handler(HTTPException)(problems.not_there)
    app.exception_handler(Exception)(problems.failed)
    app.add_middleware(Direct, path="/retrieve", answer=desk.retrieve)
    if token:
        app.add_middleware(Guarded, token=token)
    app.add_middleware(RequestCheck, names=None if token else names)
    app.add_middleware(Measured, metrics=metrics, paths=frozenset(app.openapi()["paths"]))
    return app


def _gathered(retriever: Retriever, limits: Limits, cache: int, metrics: Metrics) -> Retriever:
    gathered = Gathered(
        retriever,
        batch=limits.batch,
        waiting=limits.waiting,
        characters=limits.waiting_characters,
        patience=limits.waiting_seconds,
        observer=metrics.batch,
    )
    metrics.watch("sleuth_queued_queries", "Queries waiting for a batch.", lambda: gathered.queued)
    if not cache:
        return gathered
    # In front of the queue: what is known is answered at once, however long the queue is.
    cached = CachedRetriever(gathered, cache)
    metrics.watch("sleuth_cached_queries", "Queries answered from the cache.", lambda: cached.counts.hits)
    return cached


@dataclass(frozen=True, slots=True)
class _Desk:
    """Where requests are read, searched and answered."""

    retriever: Retriever
    metrics: Metrics
    facts: Facts
    k: int
    limits: Limits
    pages: Pages | None

    async def retrieve(self, request: Request) -> Response:
        """Passages for queries."""
        wanted = parsed(await self.limits.read_body(request.scope, request.receive), RetrieveRequest)
        self.limits.check_texts(wanted.queries, "queries", self.limits.queries)
        self.metrics.queries.inc(len(wanted.queries))
        try:
            async with WhileConnected(request.receive):
                found = await (self._reranked(wanted) if wanted.reranks else self._plain(wanted))
        except Overloaded as error:
            self.metrics.overloaded.inc()
            # Not 429, which few of these clients know: several send a request again after a 503.
            raise Refused(503, str(error), {"Retry-After": str(max(1, ceil(error.seconds)))}) from None
        return Response(found, media_type="application/json")

    async def _plain(self, wanted: RetrieveRequest) -> bytes:
        hits = await self._search(wanted.queries, wanted.topk or self.k, "topk")
        return await encoded_hits(hits, scored if wanted.return_scores else _row)

    async def _reranked(self, wanted: RetrieveRequest) -> bytes:
        k = wanted.topk_rerank or self.k
        # An index with a cross-encoder has put them in its order; one without gives them in its own.
        hits = await self._search(wanted.queries, max(k, wanted.topk_retrieval or CANDIDATES), "topk_retrieval")
        return await encoded_hits((each[:k] for each in hits), reranked if wanted.return_scores else _contents)

    async def _search(self, queries: list[str], k: int, name: str) -> list[list[Hit]]:
        """The hits of all queries; one without an answer refuses the request."""
        self.limits.check_hits(len(queries), k, name)
        answers = await self.retriever.search(queries, k)
        failed = [answer for answer in answers if isinstance(answer, SearchUnavailable)]
        if failed:
            self.metrics.unavailable.inc(len(failed))
            raise Refused(503, f"{len(failed)} of {len(queries)} queries got no answer: {failed[0].cause}")
        return [answer for answer in answers if not isinstance(answer, SearchUnavailable)]

    async def access(self, request: Request) -> Response:
        """Pages by url."""
        pages = self.pages
        if pages is None:
            raise Refused(404, "this server has no pages; start it with --pages FILE, a JSONL file of url and contents")
        body = await self.limits.read_body(request.scope, request.receive)
        wanted = parsed(body, AccessRequest, ACCESS_EXPECTED)
        self.limits.check_texts(wanted.urls, "urls", self.limits.urls)
        found = await asyncio.to_thread(lambda: encoded({"result": [pages.get(url) for url in wanted.urls]}))
        return Response(found, media_type="application/json")

    async def healthz(self) -> openapi.Alive:
        """Whether the process answers."""
        return openapi.Alive(status="ok")

    async def readyz(self) -> openapi.Ready:
        """The index that is served."""
        facts = self.facts
        return openapi.Ready(
            status="ready", index=facts.index, kind=facts.kind, passages=facts.passages, version=__version__
        )

    async def figures(self) -> Response:
        """Counts and times, for Prometheus."""
        return Response(self.metrics.page(), media_type=Metrics.CONTENT_TYPE)


def _row(hit: Hit) -> Row:
    return row_of(hit.passage)


def _contents(hit: Hit) -> str:
    return hit.passage.contents
