"""What can be opened by id, whichever way the index is named."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.index import build
from sleuth.retrieval.web.fetch import Fetcher
from sleuth.serve.library import Library, RecentPassages, ResultPages, open_library

ROWS = [{"id": name, "contents": f'"Title {name}"\nText {name}.', "url": f"u/{name}"} for name in ("a", "b", "10")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("library")
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    build(home / "corpus.jsonl", home / "index")
    return home / "index"


def text_of(opened: object) -> str | None:
    assert opened is None or isinstance(opened, Passage)
    return opened.text if opened else None


def test_a_passage_of_a_folder_is_opened_whether_it_was_found_or_not(index: Path) -> None:
    library = open_library(str(index))
    assert [text_of(asyncio.run(library.open(name))) for name in ("a", "10", "1", "")] == [
        "Text a.",
        "Text 10.",
        None,
        None,
    ]


def test_a_page_comes_before_a_passage(index: Path, tmp_path: Path) -> None:
    (tmp_path / "pages.jsonl").write_text(json.dumps({"url": "a", "contents": "A\nthe whole page"}) + "\n")
    library = open_library(str(index), pages=tmp_path / "pages.jsonl")
    assert text_of(asyncio.run(library.open("a"))) == "the whole page"
    assert text_of(asyncio.run(library.open("b"))) == "Text b."


def test_a_corpus_that_changed_is_told_and_not_raised(index: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    build(corpus, tmp_path / "index")
    library = open_library(str(tmp_path / "index"))
    with corpus.open("r+") as file:
        file.write("#" * corpus.stat().st_size)
    opened = asyncio.run(library.open("a"))
    assert isinstance(opened, SearchUnavailable)
    assert "changed after indexing" in opened.cause


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not an index folder"):
        open_library(str(tmp_path))


class Answers:
    """Finds one passage, named by the query, and fails for a query with an exclamation mark."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [
            SearchUnavailable(query, "down") if "!" in query else [Hit(Passage(query, f'"{query}"\nfound'), 1.0)][:k]
            for query in queries
        ]


def test_only_what_was_found_last_can_be_opened_where_an_index_opens_nothing() -> None:
    found = RecentPassages(capacity=2)
    library = Library(Answers(), (found,), found)
    asyncio.run(library.search(["one", "two", "no!", "one", "three"], 1))
    assert [text_of(asyncio.run(library.open(name))) for name in ("one", "two", "three", "no!")] == [
        "found",
        None,
        "found",
        None,
    ]


def test_a_shelf_that_fails_is_told_only_where_no_other_has_it() -> None:
    class Broken:
        async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
            return [SearchUnavailable(url, "broken shelf") for url in urls]

    found = RecentPassages()
    library = Library(Answers(), (Broken(), found), found)
    asyncio.run(library.search(["one"], 1))
    assert text_of(asyncio.run(library.open("one"))) == "found"
    opened = asyncio.run(library.open("two"))
    assert isinstance(opened, SearchUnavailable)
    assert opened.cause == "broken shelf"


def test_of_the_web_only_pages_that_were_found_are_fetched() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["10.0.0.1"]

    found = RecentPassages()
    pages = ResultPages(found, Fetcher(resolve=resolve))
    found.add([Passage("http://found.example/", '"t"\nsnippet')])
    other, inside = asyncio.run(pages.access(["http://other.example/", "http://found.example/"]))
    assert other is None
    assert isinstance(inside, SearchUnavailable)  # its address is one of our own network
    assert asked == ["found.example"]


def test_a_page_of_the_web_is_its_text() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<title>Bridges</title><script>alert(1)</script><p>Seven <b>bridges</b>."
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
        writer.write(head.encode() + page)
        await writer.drain()
        writer.close()

    async def fetched() -> Passage | SearchUnavailable | None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            found = RecentPassages()
            found.add([Passage(url, '"t"\nsnippet')])
            pages = ResultPages(found, Fetcher(permitted=lambda _: True, ports=None))
            return (await pages.access([url]))[0]

    opened = asyncio.run(fetched())
    assert isinstance(opened, Passage)
    assert (opened.title, opened.text) == ("Bridges", "Seven bridges.")
    assert httpx.URL(str(opened.extra["url"])).host == "127.0.0.1"
