"""Pages over HTTP: the /access of retrieval servers, asked as searches are."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial

from sleuth.errors import SearchUnavailable
from sleuth.records import Passage
from sleuth.retrieval.service.client import authorization
from sleuth.retrieval.service.connections import Connections, Lane
from sleuth.retrieval.service.exchange import Failure, exchange
from sleuth.retrieval.service.retries import Retries
from sleuth.retrieval.service.road import check_above_zero, endpoint, proxy_at, transport
from sleuth.retrieval.service.secrets import Secrets
from sleuth.retrieval.service.throttle import Throttle

Opened = list[Passage | None]


class PageClient:
    """Opens pages through a server: within `deadline` seconds, tried again as a Client tries searches."""

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
        check_above_zero(concurrency=concurrency, rate=1 if rate is None else rate, deadline=deadline)
        beside = endpoint(url, "/retrieve")
        self.url = str(beside.copy_with(path=f"{beside.path.rpartition('/')[0]}/access"))
        self._deadline = deadline
        self._retries = Retries(deadline)
        self._throttle = Throttle(rate)
        self._secrets = Secrets({} if token is None else {"token": token})
        headers = {"content-type": "application/json"} | authorization(token)
        self._connections = Connections(concurrency, partial(transport, proxy_at(proxy)), headers)

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """See Pages."""
        lane = await self._connections.lane()
        ends = asyncio.get_running_loop().time() + self._deadline
        found = await self._retries.first_answer(partial(self._attempt, lane, list(urls)), ends)
        if isinstance(found, Failure):
            return [SearchUnavailable(url, self._secrets.hidden(found.cause)) for url in urls]
        return [*found]

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; without it they end with the loop."""
        await self._connections.aclose()

    async def _attempt(self, lane: Lane, urls: list[str], before: Failure | None) -> Opened | Failure:  # noqa: ARG002
        """One request, sent when there is a slot for it and the rate allows it."""
        async with lane.slot() as http:
            await self._throttle.take()
            sending = http.post(self.url, content=json.dumps({"urls": urls}).encode())
            return await exchange(sending, self._deadline / 2, partial(_read, urls), self._secrets)


def _read(urls: list[str], body: bytes) -> Opened:
    """The page of each url; anything that is not a whole answer to them is a ValueError."""
    match json.loads(body):
        case {"result": list(pages)} if len(pages) == len(urls):
            return [_page(url, page) for url, page in zip(urls, pages, strict=True)]
    raise ValueError(f'it has no list "result" of {len(urls)} pages')


def _page(url: str, page: object) -> Passage | None:
    match page:
        case None:
            return None
        case str(text) | {"contents": str(text)}:
            return Passage(url, text)
    raise ValueError(f"the page of {url} has no text")
