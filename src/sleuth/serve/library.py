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
from sleuth.retrieval.service.client import PageClient
from sleuth.retrieval.web.fetch import Fetcher, Page

REMEMBERED = 10_000  # hits whose passages can be opened where the index itself gives none by id
DEADLINE = 20.0  # seconds of one search: an agent waits for it, and its own calls end after a minute

Opened = Passage | SearchUnavailable | None


@dataclass(frozen=True, slots=True)
class Library:
    """Searches, and opens documents: on the first of its shelves that has one."""

    retriever: Retriever
    shelves: tuple[Pages, ...]
    found: "Found"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """As Retriever; what is found can be opened from then on."""
        answers = await self.retriever.search(queries, k)
        for answer in answers:
            if not isinstance(answer, SearchUnavailable):
                self.found.remember(hit.passage for hit in answer)
        return answers

    async def open(self, name: str) -> Opened:
        """The page or passage of that id or url; None where there is none, or why it cannot be had."""
        failure: SearchUnavailable | None = None
        for shelf in self.shelves:
            (opened,) = await shelf.access([name])
            if isinstance(opened, Passage):
                return opened
            failure = failure or opened
        return failure


class Found:
    """The passages that were found last."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, Passage] = OrderedDict()

    def remember(self, passages: Iterable[Passage]) -> None:
        """Keeps them, and lets go of those that were found longest ago."""
        for passage in passages:
            self._kept[passage.id] = passage
            self._kept.move_to_end(passage.id)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        """See Pages."""
        return [self._kept.get(url) for url in urls]


class Passages:
    """The passages of an index folder by id."""

    def __init__(self, folder: Path) -> None:
        self._store = open_passages(folder)

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        """See Pages."""
        return await asyncio.to_thread(lambda: [self._passage(url) for url in urls])

    def _passage(self, name: str) -> Opened:
        try:
            return self._store.find(name)
        except InputError as error:
            return SearchUnavailable(name, str(error))


class FoundPages:
    """The whole pages of what a web search found: no others, so that no text can send the reader where it wants."""

    def __init__(self, found: Found, fetcher: Fetcher) -> None:
        self._found = found
        self._fetcher = fetcher

    async def access(self, urls: Sequence[str]) -> list[Opened]:
        """See Pages."""
        known = await self._found.access(urls)
        return [None if each is None else await self._page(url) for url, each in zip(urls, known, strict=True)]

    async def _page(self, url: str) -> Opened:
        page = await self._fetcher.fetch(url)
        if not isinstance(page, Page):
            return SearchUnavailable(url, str(page))
        return await asyncio.to_thread(_read, url, page)


def opened_library(
    index: str, *, pages: Path | None = None, token_env: str | None = None, device: str = "auto"
) -> Library:
    """The library of an index folder, an address, web:PROVIDER or import:package.function."""
    service, found = ServiceConfig(token_env=token_env, deadline=DEADLINE), Found()
    retriever = open_backend(index, service, device)
    stored: tuple[Pages, ...] = () if pages is None else (FilePages(pages),)
    return Library(retriever, (*stored, *_shelves(index, service, found)), found)


def _shelves(index: str, service: ServiceConfig, found: Found) -> tuple[Pages, ...]:
    if backend_of(index) == "server":
        return _page_client(index, service), found
    if backend_of(index) == "web":
        return FoundPages(found, Fetcher(proxy=service.proxy)), found
    return (Passages(Path(index)),) if Path(index).is_dir() else (found,)


def _page_client(url: str, service: ServiceConfig) -> PageClient:
    return PageClient(url, deadline=service.deadline, token=token_from_env(service.token_env), proxy=service.proxy)


def _read(url: str, page: Page) -> Passage:
    title, text = page_text(page.text, page.url) if page.markup else ("", page.text)
    return Passage(url, f'"{title}"\n{text}', {"url": page.url})
