"""Web search as a Retriever: provider APIs, and hits with snippets or the page text around the snippets."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import httpx

from sleuth.corpus.decoding import clean
from sleuth.corpus.html import page_text
from sleuth.credentials import Secrets
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.http.client import RequestFailure, ServiceClient
from sleuth.http.connections import LoopSemaphore, make_transport, parse_proxy, parse_service_url
from sleuth.records import Hit, Passage
from sleuth.retrieval.web.excerpt import excerpt, plain
from sleuth.retrieval.web.fetch import Fetcher, FetchFailed, FetchRefused, Page

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})?")
COUNTRY = re.compile(r"[A-Za-z]{2}")
# Error messages for an exhausted quota, which retries cannot fix; rate limits per minute are retried.
QUOTA_MESSAGE = re.compile(r"run out|not enough credits|per day|daily limit|monthly", re.IGNORECASE)
MIN_RESULTS = 10  # results requested per search: fewer cost the same, and duplicates are removed
MAX_WORDS, MAX_CHARACTERS = 50, 400  # Brave rejects longer queries; Google ignores words after the 32nd
LINK = re.compile(r"https?://", re.IGNORECASE)
PAGE_CONNECTIONS = 64
# A page that is slow to parse occupies its thread even after the search gave up on it. Parsing holds the GIL, so that
# more threads would not be faster.
PAGE_THREADS = 2


@dataclass(frozen=True, slots=True)
class WebQuery:
    """A query and the number of results to return; `language` and `country` are codes such as de and at."""

    query: str
    count: int
    language: str | None = None
    country: str | None = None


class WebResult(NamedTuple):
    url: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Provider:
    """A search API; `key_headers` and `key_params` map fields of a request to environment variables with keys."""

    method: Literal["GET", "POST"]
    url: str
    max_results: int
    fields: Callable[[WebQuery], Mapping[str, str | int | None]]
    results: Callable[[dict[str, Any]], list[WebResult]]
    key_headers: Mapping[str, str] = field(default_factory=dict)
    key_params: Mapping[str, str] = field(default_factory=dict)

    def request_fields(self, search: WebQuery) -> dict[str, str | int]:
        """Return the fields of a request, within the limits of the provider."""
        query = " ".join(clean(search.query).split()[:MAX_WORDS])[:MAX_CHARACTERS]
        count = min(self.max_results, max(search.count, MIN_RESULTS))
        fields = self.fields(replace(search, query=query, count=count))
        return {name: value for name, value in fields.items() if value is not None}

    def parse(self, answer: object) -> list[WebResult]:
        """Return results without duplicate URLs, best first; raise ValueError if the response has another format."""
        if not isinstance(answer, dict):
            raise ValueError(f"the response is of type {type(answer).__name__}, expected an object")
        unique: dict[str, WebResult] = {}
        for result in self.results(answer):
            unique.setdefault(result.url, result)
        return list(unique.values())


class Keys(Secrets):
    """API keys from the environment: `headers` and `params` map field names to environment variables."""

    def __init__(self, headers: Mapping[str, str], params: Mapping[str, str], environment: Mapping[str, str]) -> None:
        super().__init__({name: environment.get(name, "").strip() for name in (*headers.values(), *params.values())})
        for variable, value in self._values.items():
            if not value:
                raise ConfigError(
                    f"the environment variable {variable} is not set; set it to the search provider's key"
                )
            if not (value.isascii() and value.isprintable()) or " " in value:
                raise ConfigError(
                    f"the environment variable {variable} contains invalid characters; set it to the key alone"
                )
        self._headers = {name: self._values[variable] for name, variable in headers.items()}
        self._params = {name: self._values[variable] for name, variable in params.items()}

    @property
    def variables(self) -> str:
        """Names of the environment variables that hold the keys, for error messages."""
        return " and ".join(self._values)

    def add_to(self, request: httpx.Request) -> httpx.Request:
        """Return a copy of the request with the keys."""
        return httpx.Request(
            request.method,
            request.url.copy_merge_params(self._params) if self._params else request.url,
            headers={**request.headers, **self._headers},
            stream=request.stream,
            extensions=request.extensions,
        )


class KeyTransport(httpx.AsyncBaseTransport):
    """Transport that adds keys to outgoing requests, so that the client's logs and errors never contain keys."""

    def __init__(self, keys: Keys, transport: httpx.AsyncBaseTransport) -> None:
        self._keys, self._transport = keys, transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(self._keys.add_to(request))

    async def aclose(self) -> None:
        await self._transport.aclose()


def _google_fields(search: WebQuery) -> dict[str, str | int | None]:
    country = search.country and search.country.lower()
    return {"q": search.query, "num": search.count, "gl": country, "hl": search.language}


def _brave_fields(search: WebQuery) -> dict[str, str | int | None]:
    country = search.country and search.country.upper()
    texts = {"q": search.query, "country": country, "search_lang": search.language}
    return {**texts, "count": search.count, "text_decorations": "false", "result_filter": "web"}


def _serper_results(answer: dict[str, Any]) -> list[WebResult]:
    """Return the organic results, preceded by the answer box if it quotes a page."""
    box = answer.get("answerBox")
    quoted = {"snippet": box.get("answer"), **box} if isinstance(box, dict) else {}
    boxed = [quoted] if _text(quoted.get("snippet")) else []
    return _results([*boxed, *_rows(answer, "organic", "searchParameters")])


def _serpapi_results(answer: dict[str, Any]) -> list[WebResult]:
    """Return the organic results; SerpApi reports no results as an "error" with status Success."""
    metadata = answer.get("search_metadata")
    succeeded = isinstance(metadata, dict) and metadata.get("status") == "Success"
    if "error" in answer and not succeeded:
        raise ValueError(f"error message: {_text(answer['error'])}")
    return _results(_rows(answer, "organic_results", "search_metadata"))


def _brave_results(answer: dict[str, Any]) -> list[WebResult]:
    """Return the web results; Brave omits the section if there are none."""
    web = answer.get("web")
    rows = _rows(web, "results", "results") if isinstance(web, dict) else _rows(answer, "web", "query")
    texts = ("title", "description")
    return _results([{**row, **{name: plain(_text(row.get(name))) for name in texts}} for row in rows])


def _rows(answer: dict[str, Any], name: str, proof: str) -> list[dict[str, Any]]:
    """Return the list `name` of a response; it may be missing only if the response has the field `proof`."""
    rows = answer.get(name)
    if rows is None and proof in answer:
        return []
    if not isinstance(rows, list):
        raise ValueError(f'the response has no list "{name}"')
    return [row for row in rows if isinstance(row, dict)]


def _results(rows: list[dict[str, Any]]) -> list[WebResult]:
    """Return the rows that link to a web page."""

    def first(row: dict[str, Any], *names: str) -> str:
        return next(filter(None, (_text(row.get(name)) for name in names)), "")

    pages = [
        WebResult(first(row, "link", "url"), first(row, "title"), first(row, "snippet", "description")) for row in rows
    ]
    return [page for page in pages if LINK.match(page.url)]


def _text(value: object) -> str:
    """Return a string on one line; "" for a value of another type."""
    return " ".join(clean(value).split()) if isinstance(value, str) else ""


PROVIDERS: dict[str, Provider] = {
    "serper": Provider(
        method="POST",
        url="https://google.serper.dev/search",
        max_results=100,
        fields=_google_fields,
        results=_serper_results,
        key_headers={"X-API-KEY": "SERPER_API_KEY"},
    ),
    "serpapi": Provider(
        method="GET",
        url="https://serpapi.com/search",
        max_results=100,
        fields=lambda search: {"engine": "google", **_google_fields(search)},
        results=_serpapi_results,
        key_params={"api_key": "SERPAPI_API_KEY"},
    ),
    "google": Provider(
        method="GET",
        url="https://www.googleapis.com/customsearch/v1",
        max_results=10,
        fields=_google_fields,
        results=lambda answer: _results(_rows(answer, "items", "searchInformation")),
        key_params={"key": "GOOGLE_API_KEY", "cx": "GOOGLE_CSE_ID"},
    ),
    "brave": Provider(
        method="GET",
        url="https://api.search.brave.com/res/v1/web/search",
        max_results=20,
        fields=_brave_fields,
        results=_brave_results,
        key_headers={"X-Subscription-Token": "BRAVE_API_KEY"},
    ),
}


class WebSearch:
    """Retriever over a web search provider; every query returns hits or SearchUnavailable within `deadline` seconds.

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
        return [
            Hit(Passage(url, f'"{title}"\n{text}', {"url": url, "title": title}), 1.0 / rank)
            for rank, ((url, title, _), text) in enumerate(zip(results, texts, strict=True), 1)
        ]

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
        """Return the page text around the snippet, or the snippet if the page is not available before `ends`."""
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
    """Return the part of a page around the snippet, or around the query if there is no snippet."""
    visible = page_text(page.text, page.url)[1] if page.markup else page.text
    if snippet:
        return excerpt(visible, snippet)
    found = excerpt(visible, query)
    return "" if found == query else found


def _check_code(value: str | None, form: re.Pattern[str], name: str, example: str) -> str | None:
    if value is not None and not form.fullmatch(value):
        raise ConfigError(f"the {name} of web search is {value!r}; expected a code like {example}")
    return value
