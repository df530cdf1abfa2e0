"""What a page says around the snippet of a search engine, read in time or not at all."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sleuth.corpus.decoding import decoded, decoded_page
from sleuth.corpus.page_text import page_text
from sleuth.retrieval.service.slots import Slots
from sleuth.retrieval.web.excerpt import excerpt
from sleuth.retrieval.web.fetch import Fetcher, FetchFailed, FetchRefused, Page
from sleuth.retrieval.web.providers import Found

CONNECTIONS = 64
# A page made to be slow keeps its thread after the search went on without it: few, and none that others need. More
# would read no faster, since they take turns.
THREADS = 2


class Reader:
    """Reads the pages of results; `counts` are the caller's, and say what became of each."""

    def __init__(self, fetcher: Fetcher, counts: Counter[str]) -> None:
        page_text("")  # says now, not in the middle of a run, that the library it needs is missing
        self._fetcher = fetcher
        self._slots = Slots(CONNECTIONS)
        self._threads = ThreadPoolExecutor(THREADS, "page")
        self._counts = counts

    async def read(self, found: Found, query: str, ends: float) -> str:
        """The page around the snippet; the snippet where there is no page before the loop's clock is at `ends`."""
        try:
            async with asyncio.timeout_at(ends), self._slots.here():
                text = await self._text(found, query)
        except TimeoutError:
            self._counts["pages late"] += 1
            return found.snippet
        return found.snippet if text is None else text

    async def _text(self, found: Found, query: str) -> str | None:
        match page := await self._fetcher.fetch(found.url):
            case Page():
                loop = asyncio.get_running_loop()
                text = await loop.run_in_executor(self._threads, around, page, found.snippet, query)
                self._counts["pages read"] += 1
                return text
            case FetchRefused():
                self._counts["pages refused"] += 1
            case FetchFailed():
                self._counts["pages failed"] += 1
        return None


def around(page: Page, snippet: str, query: str) -> str:
    """The part of the page the snippet is from; one without a snippet is searched for the query."""
    text = written(page)
    visible = page_text(text, page.url)[1] if page.markup else text
    if snippet:
        return excerpt(visible, snippet)
    found = excerpt(visible, query)
    return "" if found == query else found


def written(page: Page) -> str:
    """A page as text, by the encoding that it has or that its server or itself names."""
    return decoded_page(page.content, page.charset) if page.markup else decoded(page.content, page.charset)
