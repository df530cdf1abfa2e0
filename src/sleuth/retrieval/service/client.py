"""Client for retrieval servers with the Search-R1 API: search, pages by URL, and the identity of the index."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any

from sleuth.credentials import Secrets, authorization_header
from sleuth.errors import InputError, SearchUnavailable
from sleuth.http.client import Parse, RequestFailure, Result, ServiceClient, check_positive
from sleuth.http.connections import make_transport, parse_proxy, parse_service_url
from sleuth.records import Hit, Passage
from sleuth.retrieval.retriever import SearchOutcome
from sleuth.retrieval.wire import parse_hits

UNREACHABLE = ("no connection", "broken connection", "time-out", "deadline")


class SearchClient:
    """Retriever and Pages over a server's /retrieve and /access, with `batch` queries per request.

    Every query returns hits or SearchUnavailable within `deadline` seconds. An attempt times out after `timeout`
    seconds (default: half the deadline) and is retried until the deadline.
    """

    def __init__(
        self,
        url: str,
        *,
        batch: int = 512,
        concurrency: int = 64,
        rate: float | None = None,
        deadline: float = 60.0,
        timeout: float | None = None,
        token: str | None = None,
        proxy: str | None = None,
    ) -> None:
        check_positive(batch=batch)
        parsed = parse_service_url(url, "/retrieve")
        self.url, self._batch = str(parsed), batch
        self._parent = parsed.copy_with(path=parsed.path.rpartition("/")[0] + "/")
        self._service = ServiceClient(
            partial(make_transport, parse_proxy(proxy)),
            concurrency=concurrency,
            rate=rate,
            deadline=deadline,
            timeout=timeout,
            headers={"content-type": "application/json", **authorization_header(token)},
            secrets=Secrets({} if token is None else {"token": token}),
        )
        self.counts = self._service.counts

    async def aclose(self) -> None:
        """Close the connections of the running event loop; otherwise they are closed when the loop ends."""
        await self._service.aclose()

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        """See Retriever; blank queries have no hits and are not sent, because servers treat them differently."""
        ends = asyncio.get_running_loop().time() + self._service.deadline
        sent = [query for query in queries if query.strip()]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._search_batch(sent[start : start + self._batch], k, ends))
                for start in range(0, len(sent), self._batch)
            ]
        answers = chain.from_iterable(task.result() for task in tasks)
        return [next(answers) if query.strip() else [] for query in queries]

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """See Pages."""
        result = await self._post(self._sibling("access"), {"urls": list(urls)}, partial(_parse_pages, urls))
        if isinstance(result, RequestFailure):
            return [SearchUnavailable(url, result.cause) for url in urls]
        return [*result]

    async def identity(self) -> dict[str, Any] | RequestFailure | None:
        """Return name, kind and size of the index from /readyz; None if the server has no such path."""
        return await self._service.request(lambda client: client.get(self._sibling("readyz")), _parse_identity)

    async def _search_batch(self, queries: list[str], k: int, ends: float) -> list[SearchOutcome]:
        content = {"queries": queries, "topk": k, "return_scores": True}
        result = await self._post(self.url, content, partial(_parse_results, len(queries)), ends)
        if isinstance(result, RequestFailure):
            return [SearchUnavailable(query, result.cause) for query in queries]
        return [hits[:k] for hits in result]

    async def _post(
        self, url: str, content: dict[str, Any], parse: Parse[Result], ends: float | None = None
    ) -> Result | RequestFailure:
        body = json.dumps(content).encode()
        return await self._service.request(lambda client: client.post(url, content=body), parse, ends)

    def _sibling(self, name: str) -> str:
        return str(self._parent.copy_with(path=self._parent.path + name))


def served_index(
    url: str, token: str | None = None, proxy: str | None = None, *, patience: float
) -> dict[str, Any] | None:
    """Return name, kind and size of a server's index from /readyz; None if the server has no such path.

    Raises InputError if the server does not answer within `patience` seconds.
    """

    async def request() -> dict[str, Any] | RequestFailure | None:
        client = SearchClient(url, token=token, proxy=proxy, deadline=patience, timeout=patience)
        try:
            return await client.identity()
        finally:
            await client.aclose()

    result = asyncio.run(request())
    if isinstance(result, RequestFailure) and result.kind in UNREACHABLE:
        raise InputError(f"the search server {url} does not answer ({result.cause}); start it, or use another")
    return None if isinstance(result, RequestFailure) else result


def _parse_results(count: int, body: bytes) -> list[list[Hit]]:
    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    match json.loads(body, parse_constant=reject):
        case {"result": list(results)} if len(results) == count:
            return [parse_hits(hits) for hits in results]
        case {"result": list(results)}:
            raise ValueError(f"results for {len(results)} queries, expected {count}")
    raise ValueError('the response has no list "result"')


def _parse_pages(urls: Sequence[str], body: bytes) -> list[Passage | None]:
    def parse(url: str, page: object) -> Passage | None:
        match page:
            case None:
                return None
            case str(text) | {"contents": str(text)}:
                return Passage(url, text)
        raise ValueError(f"the page {url} has no text")

    match json.loads(body):
        case {"result": list(pages)} if len(pages) == len(urls):
            return list(map(parse, urls, pages))
    raise ValueError(f'the response has no list "result" of {len(urls)} pages')


def _parse_identity(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match answer:
        case {"index": str(index), "kind": str(kind), "passages": int(passages)}:
            return {"name": PurePath(index).name, "kind": kind, "passages": passages}
    return None
