"""Web search as a Retriever: results of a provider, with their snippets or the text of the pages around them."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from sleuth.corpus.decoding import clean
from sleuth.corpus.html import page_text
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.http.client import RequestFailure, ServiceClient
from sleuth.http.connections import LoopSemaphore, make_transport, parse_proxy, parse_service_url
from sleuth.records import Hit, Passage
from sleuth.retrieval.web.excerpt import excerpt
from sleuth.retrieval.web.fetch import Fetcher, FetchFailed, FetchRefused, Page
from sleuth.retrieval.web.providers import PROVIDERS, Keys, KeyTransport, WebQuery, WebResult

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})?")
COUNTRY = re.compile(r"[A-Za-z]{2}")
# Messages of an exhausted quota, which retries cannot fix; limits per minute are retried.
QUOTA_MESSAGE = re.compile(r"run out|not enough credits|per day|daily limit|monthly", re.IGNORECASE)
PAGE_CONNECTIONS = 64
# A page that is slow to parse occupies its thread even after the search gave up on it. Parsing holds the GIL, so that
# more threads would not be faster.
PAGE_THREADS = 2


class WebSearch:
    """Retriever over a web search provider; every query has hits or a SearchUnavailable within `deadline` seconds.

    With `pages`, a hit has the page's text around the snippet, or the snippet if the page is not available in time.
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
        if provider not in PROVIDERS:
            raise ConfigError(f"unknown web search provider {provider!r}; expected one of {', '.join(PROVIDERS)}")
        self._provider = PROVIDERS[provider]
        self._keys = Keys(self._provider.key_headers, self._provider.key_params, environment)
        self._language = _check_code(language, LANGUAGE, "language", "de or zh-TW")
        self._country = _check_code(country, COUNTRY, "country", "de or US")
        url = httpx.URL(self._provider.url)
        self._url = url if base_url is None else parse_service_url(base_url, url.path)
        parsed_proxy = parse_proxy(proxy)
        fetcher = Fetcher(proxy=proxy) if pages is True else pages
        self.reader = PageReader(fetcher) if fetcher else None
        self._service = ServiceClient(
            # Keys are added by the transport, after everything that logs requests.
            lambda: KeyTransport(self._keys, make_transport(parsed_proxy)),
            concurrency=concurrency,
            rate=rate,
            deadline=deadline,
            headers={"Accept": "application/json"},
            secrets=self._keys,
            explain=self._explain,
        )
        self.counts = self._service.counts

    def __repr__(self) -> str:
        return f"WebSearch({self._url}, {self._keys!r})"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """See Retriever; repeated queries are sent once."""
        ends = asyncio.get_running_loop().time() + self._service.deadline
        async with asyncio.TaskGroup() as group:
            tasks = {query: group.create_task(self._search_one(query, k, ends)) for query in dict.fromkeys(queries)}
        answers = [tasks[query].result() for query in queries]
        return [list(answer) if isinstance(answer, list) else answer for answer in answers]

    async def _search_one(self, query: str, k: int, ends: float) -> list[Hit] | SearchUnavailable:
        if not clean(query).strip():
            return []
        fields = self._provider.request_fields(WebQuery(query, k, self._language, self._country))

        def send(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
            if self._provider.method == "POST":
                return client.post(self._url, json=fields)
            return client.get(self._url, params=fields)

        found = await self._service.request(send, lambda body: self._provider.parse(json.loads(body)), ends)
        if isinstance(found, RequestFailure):
            return SearchUnavailable(query, found.cause)
        results = found[:k]
        texts = [result.snippet for result in results]
        if self.reader is not None:
            texts = await asyncio.gather(*(self.reader.read(result, query, ends) for result in results))
        return [_hit(result, text, rank) for rank, (result, text) in enumerate(zip(results, texts, strict=True), 1)]

    def _explain(self, failure: RequestFailure) -> RequestFailure:
        if QUOTA_MESSAGE.search(failure.cause):
            return RequestFailure("quota", f"the quota is used up: {failure.cause}", retryable=False)
        if failure.status in (401, 403):
            return RequestFailure("key", f"{failure.cause}; check the key in {self._keys.variables}", retryable=False)
        return failure


class PageReader:
    """Reads the pages of search results; `counts` has the number of pages read, refused, failed and late."""

    def __init__(self, fetcher: Fetcher) -> None:
        page_text("")  # raises MissingExtra now instead of in the middle of a run
        self.counts = Counter[str]()
        self._fetcher = fetcher
        self._slots = LoopSemaphore(PAGE_CONNECTIONS)
        self._threads = ThreadPoolExecutor(PAGE_THREADS, "page")

    async def read(self, result: WebResult, query: str, ends: float) -> str:
        """The text of the page around the snippet, or the snippet if it is not available before `ends`."""
        try:
            async with asyncio.timeout_at(ends), self._slots.current():
                match await self._fetcher.fetch(result.url):
                    case Page() as page:
                        loop = asyncio.get_running_loop()
                        text = await loop.run_in_executor(self._threads, relevant_text, page, result.snippet, query)
                        self.counts["read"] += 1
                        return text
                    case FetchRefused():
                        self.counts["refused"] += 1
                    case FetchFailed():
                        self.counts["failed"] += 1
        except TimeoutError:
            self.counts["late"] += 1
        return result.snippet


def relevant_text(page: Page, snippet: str, query: str) -> str:
    """The part of a page around the snippet, or around the query if there is no snippet."""
    visible = page_text(page.text, page.url)[1] if page.markup else page.text
    if snippet:
        return excerpt(visible, snippet)
    found = excerpt(visible, query)
    return "" if found == query else found


def _hit(result: WebResult, text: str, rank: int) -> Hit:
    passage = Passage(result.url, f'"{result.title}"\n{text}', {"url": result.url, "title": result.title})
    return Hit(passage, 1.0 / rank)


def _check_code(value: str | None, form: re.Pattern[str], name: str, example: str) -> str | None:
    if value is not None and not form.fullmatch(value):
        raise ConfigError(f"the {name} of web search is {value!r}; expected a code like {example}")
    return value
