"""What a page says around the snippet of a search engine, read in time or not at all."""

import asyncio
import codecs
from collections import Counter

from sleuth.corpus.decoding import DECLARED, HEAD, MARKS, MEANT, clean, decoded
from sleuth.corpus.page_text import page_text
from sleuth.retrieval.excerpt import excerpt
from sleuth.retrieval.fetch import Fetcher, FetchFailed, FetchRefused, Page
from sleuth.retrieval.providers import Found
from sleuth.retrieval.slots import Slots

# Encodings of written text; Python's table has others, of which some take minutes for a page made for it.
ENCODINGS = (
    *("ascii", "utf-8", "utf-16", "iso8859", "cp125", "cp874", "cp949", "koi8", "mac"),
    *("big5", "euc", "gb", "iso2022", "shift_jis"),
)
AT_ONCE = 64  # connections to pages; the processor that reads them is kept busy by fewer


class Reader:
    """Reads the pages of results; `counts` are the caller's, and say what became of each."""

    def __init__(self, fetcher: Fetcher, counts: Counter[str]) -> None:
        page_text("")  # says now, not in the middle of a run, that the library it needs is missing
        self._fetcher = fetcher
        self._slots = Slots(AT_ONCE)
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
                text = await asyncio.to_thread(around, page, found.snippet, query)
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
    """A page as text, by its byte order mark, by the encoding that server or page names, or as files are read."""
    declared = DECLARED.search(page.content, 0, HEAD) if page.markup else None
    named = _encoding(page.charset or (declared[1].decode("ascii") if declared else ""))
    if named is None or page.content.startswith(tuple(MARKS)):
        return decoded(page.content)
    try:
        return clean(page.content.decode(named))
    except UnicodeDecodeError:
        return decoded(page.content)


def _encoding(name: str) -> str | None:
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return MEANT.get(codec, codec) if codec.startswith(ENCODINGS) else None
