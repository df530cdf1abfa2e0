"""Web search as a Retriever: a provider's results, with its snippets or the text of the pages around them."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial

import httpx

from sleuth.corpus.decoding import clean
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.service.connections import Connections, Lane
from sleuth.retrieval.service.exchange import Failure, exchange
from sleuth.retrieval.service.retries import Retries
from sleuth.retrieval.service.road import check_above_zero, endpoint, proxy_at, transport
from sleuth.retrieval.service.throttle import Throttle
from sleuth.retrieval.web.fetch import Fetcher
from sleuth.retrieval.web.keys import Keys, Signed
from sleuth.retrieval.web.providers import PROVIDERS, Asked, Found
from sleuth.retrieval.web.reading import Reader

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})?")
COUNTRY = re.compile(r"[A-Za-z]{2}")
# What providers say when nothing but a new month or a payment helps; a limit a minute is over sooner than that.
EXHAUSTED = re.compile(r"run out|not enough credits|per day|daily limit|monthly", re.IGNORECASE)
FORBIDDEN = frozenset({"status 401", "status 403"})


class Web:
    """Searches the web: hits, or within `deadline` seconds a SearchUnavailable that says why.

    At most `concurrency` requests are in flight and `rate` a second are sent; one without an answer after half the
    deadline is tried again until the deadline. With `pages` a hit holds the page's text around the snippet; a
    page that cannot be had in time leaves the snippet. `counts` says how often each thing happened.
    """

    def __init__(
        self,
        provider: str,
        *,
        language: str | None = None,
        country: str | None = None,
        pages: bool | Fetcher = False,
        proxy: str | None = None,
        concurrency: int = 16,
        rate: float | None = None,
        deadline: float = 30.0,
        base_url: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        check_above_zero(concurrency=concurrency, rate=1 if rate is None else rate, deadline=deadline)
        if provider not in PROVIDERS:
            raise ConfigError(f"no web search provider is called {provider!r}; expected one of {', '.join(PROVIDERS)}")
        self._provider = PROVIDERS[provider]
        self._keys = Keys(self._provider.key_headers, self._provider.key_params, environment)
        self._language = _code(language, LANGUAGE, "language", "de or zh-TW")
        self._country = _code(country, COUNTRY, "country", "de or US")
        url = httpx.URL(self._provider.url)
        self._url = url if base_url is None else endpoint(base_url, url.path)
        self._proxy = proxy_at(proxy)
        self.counts: Counter[str] = Counter()
        fetcher = Fetcher(proxy=proxy) if pages is True else pages
        self._reader = Reader(fetcher, self.counts) if fetcher else None
        self._deadline = deadline
        self._retries = Retries(deadline)
        self._throttle = Throttle(rate)
        self._connections = Connections(concurrency, self._connect, {"Accept": "application/json"})

    def __repr__(self) -> str:
        return f"Web({self._url}, {self._keys!r})"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """See Retriever; a query that stands here twice is paid for once."""
        ends = asyncio.get_running_loop().time() + self._deadline
        lane = await self._connections.lane()
        async with asyncio.TaskGroup() as group:
            tasks = {query: group.create_task(self._answer(lane, query, k, ends)) for query in dict.fromkeys(queries)}
        answers = [tasks[query].result() for query in queries]
        return [list(answer) if isinstance(answer, list) else answer for answer in answers]

    def _connect(self) -> Signed:
        """The keys are put on requests last, where nobody logs them any more."""
        return Signed(self._keys, transport(self._proxy))

    async def _answer(self, lane: Lane, query: str, k: int, ends: float) -> list[Hit] | SearchUnavailable:
        if not clean(query).strip():
            return []
        asked = Asked(query, k, self._language, self._country)
        found = await self._retries.first_answer(partial(self._attempt, lane, asked), ends)
        if isinstance(found, Failure):
            self.counts["unavailable"] += 1
            return SearchUnavailable(query, self._keys.hidden(found.cause))
        self.counts["answered"] += 1
        texts = await self._texts(found[:k], query, ends)
        return [_hit(each, text, place) for place, (each, text) in enumerate(zip(found[:k], texts, strict=True), 1)]

    async def _texts(self, found: list[Found], query: str, ends: float) -> list[str]:
        if self._reader is None:
            return [each.snippet for each in found]
        return await asyncio.gather(*(self._reader.read(each, query, ends) for each in found))

    async def _attempt(self, lane: Lane, asked: Asked, _: Failure | None) -> list[Found] | Failure:
        """One request, sent when there is a slot for it and the rate allows it."""
        async with lane.slot() as http:
            await self._throttle.take()
            self.counts["requests"] += 1
            found = await exchange(self._sending(http, asked), self._deadline / 2, self._read, self._keys)
        if isinstance(found, Failure):
            found = self._explained(found)
            self.counts[f"failed: {found.kind}"] += 1
        return found

    def _sending(self, http: httpx.AsyncClient, asked: Asked) -> Awaitable[httpx.Response]:
        fields = self._provider.ask(asked)
        if self._provider.method == "POST":
            return http.post(self._url, json=fields)
        return http.get(self._url, params=fields)

    def _read(self, body: bytes) -> list[Found]:
        return self._provider.read(json.loads(body))

    def _explained(self, failure: Failure) -> Failure:
        """A failure, with what the user can do about it."""
        if EXHAUSTED.search(failure.cause):
            return Failure("quota", f"the quota is used up: {failure.cause}", again=False)
        if failure.kind in FORBIDDEN:
            return Failure("key", f"{failure.cause}; is {self._keys.variables} right?", again=False)
        return failure


def _hit(found: Found, text: str, place: int) -> Hit:
    passage = Passage(found.url, f'"{found.title}"\n{text}', {"url": found.url, "title": found.title})
    return Hit(passage, 1.0 / place)


def _code(value: str | None, form: re.Pattern[str], name: str, example: str) -> str | None:
    if value is not None and not form.fullmatch(value):
        raise ConfigError(f"the {name} of web search is {value!r}; expected a code like {example}")
    return value
