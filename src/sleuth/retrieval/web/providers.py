"""Web search providers: their keys, request fields and response formats."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from sleuth.corpus.decoding import clean
from sleuth.credentials import Secrets
from sleuth.errors import ConfigError
from sleuth.retrieval.web.excerpt import plain

Fields = dict[str, str | int]
MIN_RESULTS = 10  # requested per search: fewer cost the same, and duplicates are removed
MAX_WORDS, MAX_CHARACTERS = 50, 400  # Brave rejects longer queries; Google ignores words after the 32nd
LINK = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WebQuery:
    """A query with the number of results; `language` and `country` are codes like de and at."""

    query: str
    count: int
    language: str | None = None
    country: str | None = None


@dataclass(frozen=True, slots=True)
class WebResult:
    """One search result."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Provider:
    """A search API; keys are sent as headers or parameters, read from the environment variables given for them."""

    method: Literal["GET", "POST"]
    url: str
    max_results: int
    fields: Callable[[WebQuery], Mapping[str, str | int | None]]
    results: Callable[[dict[str, Any]], list[WebResult]]
    key_headers: Mapping[str, str] = field(default_factory=dict)
    key_params: Mapping[str, str] = field(default_factory=dict)

    def request_fields(self, search: WebQuery) -> Fields:
        """Fields of a request, within the limits of the provider."""
        query = " ".join(clean(search.query).split()[:MAX_WORDS])[:MAX_CHARACTERS]
        count = min(self.max_results, max(search.count, MIN_RESULTS))
        fields = self.fields(replace(search, query=query, count=count))
        return {name: value for name, value in fields.items() if value is not None}

    def parse(self, answer: object) -> list[WebResult]:
        """Results without duplicate URLs, best first; raises ValueError if the response has another format."""
        if not isinstance(answer, dict):
            raise ValueError(f"the response is of type {type(answer).__name__}, expected an object")
        unique: dict[str, WebResult] = {}
        for result in self.results(answer):
            unique.setdefault(result.url, result)
        return list(unique.values())


class Keys(Secrets):
    """API keys from the environment: `headers` and `params` map field names to environment variables."""

    def __init__(self, headers: Mapping[str, str], params: Mapping[str, str], environment: Mapping[str, str]) -> None:
        super().__init__({name: _read_key(name, environment) for name in (*headers.values(), *params.values())})
        self._headers = {name: self._values[variable] for name, variable in headers.items()}
        self._params = {name: self._values[variable] for name, variable in params.items()}

    @property
    def variables(self) -> str:
        """The environment variables of the keys, for error messages."""
        return " and ".join(self._values)

    def add_to(self, request: httpx.Request) -> httpx.Request:
        """A copy of the request with the keys."""
        return httpx.Request(
            request.method,
            request.url.copy_merge_params(self._params) if self._params else request.url,
            headers={**request.headers, **self._headers},
            stream=request.stream,
            extensions=request.extensions,
        )


class KeyTransport(httpx.AsyncBaseTransport):
    """Adds keys to outgoing requests, so that the client's logs and errors show requests without them."""

    def __init__(self, keys: Keys, transport: httpx.AsyncBaseTransport) -> None:
        self._keys, self._transport = keys, transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(self._keys.add_to(request))

    async def aclose(self) -> None:
        await self._transport.aclose()


def _read_key(variable: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable, "").strip()
    if not value:
        raise ConfigError(f"the environment variable {variable} is not set; set it to the search provider's key")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ConfigError(f"the environment variable {variable} contains invalid characters; set it to the key alone")
    return value


def _google_fields(search: WebQuery) -> dict[str, str | int | None]:
    country = search.country and search.country.lower()
    return {"q": search.query, "num": search.count, "gl": country, "hl": search.language}


def _brave_fields(search: WebQuery) -> dict[str, str | int | None]:
    country = search.country and search.country.upper()
    texts = {"q": search.query, "country": country, "search_lang": search.language}
    return {**texts, "count": search.count, "text_decorations": "false", "result_filter": "web"}


def _serper_results(answer: dict[str, Any]) -> list[WebResult]:
    """Organic results, preceded by the answer box if it quotes a page."""
    box = answer.get("answerBox")
    quoted = {"snippet": box.get("answer"), **box} if isinstance(box, dict) else {}
    boxed = [quoted] if _text(quoted.get("snippet")) else []
    return _results([*boxed, *_rows(answer, "organic", "searchParameters")])


def _serpapi_results(answer: dict[str, Any]) -> list[WebResult]:
    """Organic results; a search without results succeeds with an "error"."""
    metadata = answer.get("search_metadata")
    succeeded = isinstance(metadata, dict) and metadata.get("status") == "Success"
    if "error" in answer and not succeeded:
        raise ValueError(f"error message: {_text(answer['error'])}")
    return _results(_rows(answer, "organic_results", "search_metadata"))


def _google_results(answer: dict[str, Any]) -> list[WebResult]:
    return _results(_rows(answer, "items", "searchInformation"))


def _brave_results(answer: dict[str, Any]) -> list[WebResult]:
    """Web results; the whole section is missing if there are none."""
    web = answer.get("web")
    rows = _rows(web, "results", "results") if isinstance(web, dict) else _rows(answer, "web", "query")
    return _results(
        [{**row, **{name: plain(_text(row.get(name))) for name in ("title", "description")}} for row in rows]
    )


def _rows(answer: dict[str, Any], name: str, proof: str) -> list[dict[str, Any]]:
    """Rows under a name; they may be missing only from a response that has the `proof` field."""
    rows = answer.get(name)
    if rows is None and proof in answer:
        return []
    if not isinstance(rows, list):
        raise ValueError(f'no list "{name}"')
    return [row for row in rows if isinstance(row, dict)]


def _results(rows: list[dict[str, Any]]) -> list[WebResult]:
    """Rows that link to a web page."""
    pages = [
        WebResult(_first(row, "link", "url"), _first(row, "title"), _first(row, "snippet", "description"))
        for row in rows
    ]
    return [page for page in pages if LINK.match(page.url)]


def _first(row: dict[str, Any], *names: str) -> str:
    """The first non-empty text under any of the names."""
    return next(filter(None, (_text(row.get(name)) for name in names)), "")


def _text(value: object) -> str:
    """A string on one line; "" for any other value."""
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
        results=_google_results,
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
