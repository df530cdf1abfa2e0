"""Clients of retrieval servers that use the Search-R1 API: search, pages by URL, and the identity of the index."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any, NoReturn

from sleuth.credentials import Secrets, authorization_header
from sleuth.errors import InputError, SearchUnavailable
from sleuth.http.client import RequestFailure, ServiceClient, check_positive
from sleuth.http.connections import make_transport, parse_proxy, parse_service_url
from sleuth.records import Hit, Passage
from sleuth.retrieval.wire import parse_hits

UNREACHABLE = ("no connection", "broken connection", "time-out", "deadline")

Outcomes = list[list[Hit] | SearchUnavailable]


@dataclass(frozen=True, slots=True)
class Counts:
    """Statistics of a client.

    `failures` and `retries` count requests by the kind of failure, `answered` and `unavailable` count queries. Requests
    in flight count as sent; those cancelled by the deadline or the caller are failures of the kind "cut off".
    `seconds` is the total duration of all calls.
    """

    requests: int
    failures: Mapping[str, int]
    retries: Mapping[str, int]
    answered: int
    unavailable: Mapping[str, int]
    seconds: float


class SearchClient:
    """Retriever that queries a server, `batch` queries per request.

    Every query has hits or a SearchUnavailable within `deadline` seconds. An attempt times out after `timeout` seconds
    (default: half the deadline) and is retried until the deadline.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 64,
        rate: float | None = None,
        deadline: float = 60.0,
        timeout: float | None = None,
        token: str | None = None,
        proxy: str | None = None,
        batch: int = 512,
    ) -> None:
        check_positive(batch=batch)
        self.url, self._batch = str(parse_service_url(url, "/retrieve")), batch
        self._service = _service(token, proxy, concurrency=concurrency, rate=rate, deadline=deadline, timeout=timeout)
        self._answered, self._seconds = 0, 0.0
        self._unavailable = Counter[str]()

    @property
    def counts(self) -> Counts:
        """A snapshot of the statistics."""
        sent = self._service
        failures, retries, unavailable = dict(sent.failures), dict(sent.retries), dict(self._unavailable)
        return Counts(sent.requests, failures, retries, self._answered, unavailable, self._seconds)

    async def search(self, queries: Sequence[str], k: int) -> Outcomes:
        """See Retriever; blank queries have no hits and are not sent, because servers treat them differently."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        sent = [query for query in queries if query.strip()]
        batches = [sent[start : start + self._batch] for start in range(0, len(sent), self._batch)]
        self._answered += len(queries) - len(sent)
        try:
            async with asyncio.TaskGroup() as group:
                ends = started + self._service.deadline
                tasks = [group.create_task(self._search_batch(batch, k, ends)) for batch in batches]
        finally:
            self._seconds += loop.time() - started
        answers = chain.from_iterable(task.result() for task in tasks)
        return [next(answers) if query.strip() else [] for query in queries]

    async def aclose(self) -> None:
        """Close the connections of the running event loop; otherwise they are closed when the loop ends."""
        await self._service.aclose()

    async def _search_batch(self, queries: list[str], k: int, ends: float) -> Outcomes:
        body = json.dumps({"queries": queries, "topk": k, "return_scores": True}).encode()
        result = await self._service.request(
            lambda client: client.post(self.url, content=body), partial(_parse_results, len(queries)), ends
        )
        if isinstance(result, RequestFailure):
            self._unavailable[result.kind] += len(queries)
            return [SearchUnavailable(query, result.cause) for query in queries]
        self._answered += len(queries)
        return [hits[:k] for hits in result]


class PageClient:
    """Pages by URL from a server's /access, with the same deadline and retries as SearchClient."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 64,
        rate: float | None = None,
        deadline: float = 60.0,
        token: str | None = None,
        proxy: str | None = None,
    ) -> None:
        self.url = _sibling(url, "access")
        self._service = _service(token, proxy, concurrency=concurrency, rate=rate, deadline=deadline)

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """See Pages."""
        body = json.dumps({"urls": list(urls)}).encode()
        result = await self._service.request(
            lambda client: client.post(self.url, content=body), partial(_parse_pages, urls)
        )
        if isinstance(result, RequestFailure):
            return [SearchUnavailable(url, result.cause) for url in urls]
        return [*result]

    async def aclose(self) -> None:
        """Close the connections of the running event loop; otherwise they are closed when the loop ends."""
        await self._service.aclose()


def served_index(
    url: str, token: str | None = None, proxy: str | None = None, *, patience: float
) -> dict[str, Any] | None:
    """Name, kind and size of the index behind a server's /readyz; None if it has no such path.

    Raises InputError if the server does not answer within `patience` seconds.
    """

    async def ask() -> dict[str, Any] | RequestFailure | None:
        service = _service(token, proxy, concurrency=1, deadline=patience, timeout=patience)
        try:
            return await service.request(lambda client: client.get(_sibling(url, "readyz")), _parse_identity)
        finally:
            await service.aclose()

    result = asyncio.run(ask())
    if not isinstance(result, RequestFailure):
        return result
    if result.kind in UNREACHABLE:
        raise InputError(f"the search server {url} does not answer ({result.cause}); start it, or use another")
    return None


def _service(
    token: str | None,
    proxy: str | None,
    *,
    concurrency: int,
    deadline: float,
    rate: float | None = None,
    timeout: float | None = None,
) -> ServiceClient:
    return ServiceClient(
        partial(make_transport, parse_proxy(proxy)),
        concurrency=concurrency,
        rate=rate,
        deadline=deadline,
        timeout=timeout,
        headers={"content-type": "application/json", **authorization_header(token)},
        secrets=Secrets({} if token is None else {"token": token}),
    )


def _sibling(url: str, name: str) -> str:
    """The URL of another path of the server, next to /retrieve."""
    retrieve = parse_service_url(url, "/retrieve")
    return str(retrieve.copy_with(path=f"{retrieve.path.rpartition('/')[0]}/{name}"))


def _parse_results(count: int, body: bytes) -> list[list[Hit]]:
    """Hits of each of `count` queries; raises ValueError for anything else."""
    match json.loads(body, parse_constant=_reject_constant):
        case {"result": list(results)} if len(results) == count:
            return [parse_hits(hits) for hits in results]
        case {"result": list(results)}:
            raise ValueError(f"results for {len(results)} queries, expected {count}")
    raise ValueError('no list "result"')


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _parse_pages(urls: Sequence[str], body: bytes) -> list[Passage | None]:
    """The page of each URL; raises ValueError for anything else."""
    match json.loads(body):
        case {"result": list(pages)} if len(pages) == len(urls):
            return [_parse_page(url, page) for url, page in zip(urls, pages, strict=True)]
    raise ValueError(f'no list "result" of {len(urls)} pages')


def _parse_page(url: str, page: object) -> Passage | None:
    match page:
        case None:
            return None
        case str(text) | {"contents": str(text)}:
            return Passage(url, text)
    raise ValueError(f"the page {url} has no text")


def _parse_identity(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match answer:
        case {"index": str(index), "kind": str(kind), "passages": int(passages)}:
            return {"name": PurePath(index).name, "kind": kind, "passages": passages}
    return None
