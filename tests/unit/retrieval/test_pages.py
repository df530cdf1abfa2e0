"""Pages by URL from a file or a server."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.corpus.pages import PageStore
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.http.server import bind
from sleuth.records import Passage
from sleuth.retrieval.backends import FilePages, open_pages
from sleuth.retrieval.retriever import NullRetriever, Pages
from sleuth.retrieval.service.client import SearchClient
from sleuth.retrieval.service.server import Facts, application

URLS = ["https://oslo.no", "https://none.no", "https://w.org/index.php/Rome"]
FOUND = [Passage(URLS[0], "Oslo\n\nA city."), None, Passage(URLS[2], "Rome")]
TOKEN = "s3cr3t"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pages = {URLS[0]: "Oslo\n\nA city.", "https://w.org/index.php?title=Rome": "Rome"}
    path = tmp_path / "pages.jsonl"
    path.write_text("".join(json.dumps({"url": url, "contents": text}) + "\n" for url, text in pages.items()))
    return path


def opened(pages: Pages, urls: Sequence[str] = URLS) -> list[Passage | SearchUnavailable | None]:
    async def ask() -> list[Passage | SearchUnavailable | None]:
        return await pages.access(urls)

    return asyncio.run(ask())


@asynccontextmanager
async def served(store: PageStore | None) -> AsyncIterator[str]:
    """The address of a retrieval server with these pages."""
    app = application(NullRetriever(), Facts("none", "bm25", 0), pages=store, token=TOKEN)
    with bind("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await running


async def answered(body: bytes) -> list[Passage | SearchUnavailable | None]:
    """What is made of a server that says this."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        client = SearchClient(url, deadline=0.5)
        found = await client.access(["a"])
        await client.aclose()
        return found


def test_of_a_file(file: Path) -> None:
    assert opened(open_pages(RetrievalConfig(pages=str(file)))) == FOUND
    assert opened(FilePages(file), []) == []


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not exist"):
        open_pages(RetrievalConfig(pages=str(tmp_path / "none.jsonl")))


def test_of_the_server_that_is_searched(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In process and over HTTP the same pages are found."""
    monkeypatch.setenv("PAGES_TOKEN", TOKEN)

    async def ask() -> None:
        async with served(PageStore(file)) as url:
            for address in (url, f"{url}/retrieve"):
                service = ServiceConfig(token_env="PAGES_TOKEN")
                pages = open_pages(RetrievalConfig(index=address, service=service))
                assert isinstance(pages, SearchClient)
                assert pages.url == f"{url}/access"
                assert await pages.access(URLS) == FOUND
                await pages.aclose()

    asyncio.run(ask())


@pytest.mark.parametrize(("token", "cause"), [(TOKEN, "this server has no pages"), ("wrong", "status 401")])
def test_server_that_refuses(token: str, cause: str) -> None:
    async def ask() -> list[Passage | SearchUnavailable | None]:
        async with served(None) as url:
            client = SearchClient(url, token=token)
            found = await client.access(URLS[:2])
            await client.aclose()
            return found

    found = asyncio.run(ask())
    assert len(found) == 2
    for url, each in zip(URLS, found, strict=False):
        assert isinstance(each, SearchUnavailable)
        assert each.query == url
        assert cause in each.cause


def test_unreachable_server() -> None:
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (found,) = opened(SearchClient(url, deadline=0.5), ["a"])
    assert isinstance(found, SearchUnavailable)
    assert "connect" in found.cause


@pytest.mark.parametrize("body", [b"[]", b'{"result": []}', b'{"result": [3]}', b'{"result": [{"text": "x"}]}', b"no"])
def test_invalid_response(body: bytes) -> None:
    (found,) = asyncio.run(answered(body))
    assert isinstance(found, SearchUnavailable)
    assert "unexpected response" in found.cause


@pytest.mark.parametrize("body", [b'{"result": ["text"]}', b'{"result": [{"contents": "text", "url": "b"}]}'])
def test_shapes_of_pages(body: bytes) -> None:
    assert asyncio.run(answered(body)) == [Passage("a", "text")]


@pytest.mark.parametrize("index", [None, "folder", "web:serper", "import:mine.search"])
def test_no_pages(index: str | None) -> None:
    with pytest.raises(ConfigError, match=r"tools-access .*retrieval\.pages"):
        open_pages(RetrievalConfig(index=index))
