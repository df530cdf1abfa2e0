"""The documents of one search backend, searchable and readable by id."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.config.retrieval import ServiceConfig, backend_of
from sleuth.corpus.html import page_text
from sleuth.credentials import token_from_env
from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.backends import FilePages, open_backend
from sleuth.retrieval.index import open_passages
from sleuth.retrieval.retriever import Pages, Retriever
from sleuth.retrieval.service.client import SearchClient
from sleuth.retrieval.web.fetch import Fetcher, Page

RECENT_PASSAGES = 10_000  # search results kept for opening if the backend cannot look up ids
DEADLINE = 20.0  # seconds per search; MCP clients give up after a minute

Opened = Passage | SearchUnavailable | None


@dataclass(frozen=True, slots=True)
class Library:
    """Searches documents, and opens each document from the first source that contains the document."""

    retriever: Retriever
    sources: tuple[Pages, ...]
    recent: "RecentPassages"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """Search as a Retriever does, and keep the results so that they can be opened."""
        answers = await self.retriever.search(queries, k)
        for answer in answers:
            if not isinstance(answer, SearchUnavailable):
                self.recent.add(hit.passage for hit in answer)
        return answers

    async def open(self, name: str) -> Opened:
        """Return the page or passage with this id or URL; None if it does not exist."""
        failure: SearchUnavailable | None = None
        for source in self.sources:
            (opened,) = await source.access([name])
            if isinstance(opened, Passage):
                return opened
            failure = failure or opened
        return failure


class RecentPassages:
    """The most recent search results, accessible by id."""

    def __init__(self, capacity: int = RECENT_PASSAGES) -> None:
        self._capacity = capacity
        self._passages: OrderedDict[str, Passage] = OrderedDict()

    def add(self, passages: Iterable[Passage]) -> None:
        for passage in passages:
            self._passages[passage.id] = passage
            self._passages.move_to_end(passage.id)
        while len(self._passages) > self._capacity:
            self._passages.popitem(last=False)

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        return [self._passages.get(url) for url in urls]


class IndexPassages:
    """The passages of an index folder, accessible by id."""

    def __init__(self, folder: Path) -> None:
        self._store = open_passages(folder)

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        return await asyncio.to_thread(lambda: [self._passage(url) for url in urls])

    def _passage(self, name: str) -> Opened:
        try:
            return self._store.find(name)
        except InputError as error:
            return SearchUnavailable(name, str(error))


@dataclass(frozen=True, slots=True)
class ResultPages:
    """Fetches the full pages of recent web results only, so that no document can direct a client to another address."""

    recent: RecentPassages
    fetcher: Fetcher

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        known = await self.recent.access(urls)
        return [None if each is None else await self._page(url) for url, each in zip(urls, known, strict=True)]

    async def _page(self, url: str) -> Opened:
        page = await self.fetcher.fetch(url)
        if not isinstance(page, Page):
            return SearchUnavailable(url, str(page))
        title, text = "", page.text
        if page.markup:
            title, text = await asyncio.to_thread(page_text, page.text, page.url)
        return Passage(url, f'"{title}"\n{text}', {"url": page.url})


def open_library(
    index: str, *, pages: Path | None = None, token_env: str | None = None, device: str = "auto"
) -> Library:
    """Open the library of an index folder, a server address, web:PROVIDER or import:package.function."""
    service, recent = ServiceConfig(token_env=token_env, deadline=DEADLINE), RecentPassages()
    retriever = open_backend(index, service, device)
    sources: list[Pages] = [] if pages is None else [FilePages(pages)]
    match backend_of(index):
        case "server":
            token = token_from_env(token_env)
            sources += [SearchClient(index, deadline=DEADLINE, token=token, proxy=service.proxy), recent]
        case "web":
            sources += [ResultPages(recent, Fetcher(proxy=service.proxy)), recent]
        case _:
            sources.append(IndexPassages(Path(index)) if Path(index).is_dir() else recent)
    return Library(retriever, tuple(sources), recent)
