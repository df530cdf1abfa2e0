"""The search engines of the web one can rent: how each is asked, and how its answers read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sleuth.corpus.decoding import clean
from sleuth.retrieval.web.excerpt import plain

Fields = dict[str, str | int]
USUAL = 10  # results a page: fewer cost the same, and some fall away as doubles
WORDS, CHARACTERS = 50, 400  # Brave refuses longer queries; Google ignores all but the first 32 words
LINK = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A search as the caller wants it; `language` and `country` are codes like de and at."""

    query: str
    count: int
    language: str | None = None
    country: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One result: a page, and what the engine quotes of it."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Provider:
    """A search engine: where it is, the names under which it takes its keys and from which variables they come.

    `most` is how many results one request can bring.
    """

    method: Literal["GET", "POST"]
    url: str
    most: int
    fields: Callable[[Asked], Mapping[str, str | int | None]]
    results: Callable[[dict[str, Any]], list[Found]]
    key_headers: Mapping[str, str] = field(default_factory=dict)
    key_params: Mapping[str, str] = field(default_factory=dict)

    def ask(self, asked: Asked) -> Fields:
        """The fields of a request, within what the provider takes."""
        query = " ".join(clean(asked.query).split()[:WORDS])[:CHARACTERS]
        count = min(self.most, max(asked.count, USUAL))
        fields = self.fields(Asked(query, count, asked.language, asked.country))
        return {name: value for name, value in fields.items() if value is not None}

    def read(self, answer: object) -> list[Found]:
        """The results in an answer, best first, no page twice; what is no answer is a ValueError."""
        if not isinstance(answer, dict):
            raise ValueError(f"it is of type {type(answer).__name__}, expected an object")
        unique: dict[str, Found] = {}
        for found in self.results(answer):
            unique.setdefault(found.url, found)
        return list(unique.values())


def _google_like(asked: Asked) -> dict[str, str | int | None]:
    country = asked.country and asked.country.lower()
    return {"q": asked.query, "num": asked.count, "gl": country, "hl": asked.language}


def _brave_fields(asked: Asked) -> dict[str, str | int | None]:
    country = asked.country and asked.country.upper()
    texts = {"q": asked.query, "country": country, "search_lang": asked.language}
    return {**texts, "count": asked.count, "text_decorations": "false", "result_filter": "web"}


def _serper_results(answer: dict[str, Any]) -> list[Found]:
    """The organic results, after the answer box where it quotes a page."""
    box = answer.get("answerBox")
    quoted = {"snippet": box.get("answer"), **box} if isinstance(box, dict) else {}
    boxed = [quoted] if _text(quoted.get("snippet")) else []
    return _found([*boxed, *_rows(answer, "organic", "searchParameters")])


def _serpapi_results(answer: dict[str, Any]) -> list[Found]:
    """The organic results; a search that found nothing succeeds, and says so in "error"."""
    metadata = answer.get("search_metadata")
    succeeded = isinstance(metadata, dict) and metadata.get("status") == "Success"
    if "error" in answer and not succeeded:
        raise ValueError(f"it says: {_text(answer['error'])}")
    return _found(_rows(answer, "organic_results", "search_metadata"))


def _google_results(answer: dict[str, Any]) -> list[Found]:
    return _found(_rows(answer, "items", "searchInformation"))


def _brave_results(answer: dict[str, Any]) -> list[Found]:
    """The web results; where there are none, the whole part is missing."""
    web = answer.get("web")
    rows = _rows(web, "results", "results") if isinstance(web, dict) else _rows(answer, "web", "query")
    return _found([{**row, **{name: plain(_text(row.get(name))) for name in ("title", "description")}} for row in rows])


def _rows(answer: dict[str, Any], name: str, proof: str) -> list[dict[str, Any]]:
    """The rows under that name; without them an answer is one that found nothing only if it has the proof."""
    rows = answer.get(name)
    if rows is None and proof in answer:
        return []
    if not isinstance(rows, list):
        raise ValueError(f'it has no list "{name}"')
    return [row for row in rows if isinstance(row, dict)]


def _found(rows: list[dict[str, Any]]) -> list[Found]:
    """The rows that lead to a page of the web."""
    pages = [
        Found(_first(row, "link", "url"), _first(row, "title"), _first(row, "snippet", "description")) for row in rows
    ]
    return [page for page in pages if LINK.match(page.url)]


def _first(row: dict[str, Any], *names: str) -> str:
    """The text under the first of the names that has one, on one line."""
    return next(filter(None, (_text(row.get(name)) for name in names)), "")


def _text(value: object) -> str:
    """A text on one line, "" where there is none."""
    return " ".join(clean(value).split()) if isinstance(value, str) else ""


PROVIDERS: dict[str, Provider] = {
    "serper": Provider(
        method="POST",
        url="https://google.serper.dev/search",
        most=100,
        fields=_google_like,
        results=_serper_results,
        key_headers={"X-API-KEY": "SERPER_API_KEY"},
    ),
    "serpapi": Provider(
        method="GET",
        url="https://serpapi.com/search",
        most=100,
        fields=lambda asked: {"engine": "google", **_google_like(asked)},
        results=_serpapi_results,
        key_params={"api_key": "SERPAPI_API_KEY"},
    ),
    "google": Provider(
        method="GET",
        url="https://www.googleapis.com/customsearch/v1",
        most=10,
        fields=_google_like,
        results=_google_results,
        key_params={"key": "GOOGLE_API_KEY", "cx": "GOOGLE_CSE_ID"},
    ),
    "brave": Provider(
        method="GET",
        url="https://api.search.brave.com/res/v1/web/search",
        most=20,
        fields=_brave_fields,
        results=_brave_results,
        key_headers={"X-Subscription-Token": "BRAVE_API_KEY"},
    ),
}
