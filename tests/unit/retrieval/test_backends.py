"""Backends by name: index folder, server, web search, function; recording, replay, cache; pages by URL."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.corpus.pages import PageStore
from sleuth.errors import ConfigError, InputError, ReplayMiss, SearchUnavailable
from sleuth.http.server import bind
from sleuth.records import Hit, Passage
from sleuth.retrieval import manifest
from sleuth.retrieval.backends import (
    FilePages,
    FunctionRetriever,
    backend_identity,
    open_backend,
    open_pages,
    open_retriever,
)
from sleuth.retrieval.index import build
from sleuth.retrieval.retriever import NullRetriever, Pages, Retriever
from sleuth.retrieval.service.client import SearchClient
from sleuth.retrieval.service.server import Facts, application
from sleuth.retrieval.web.search import WebSearch

MODULE = """
asked = []

def search(queries, k):
    asked.extend(queries)
    return [[{"id": "mine", "contents": query}] for query in queries]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with an index and a module that searches."""
    rows = [{"id": name, "contents": f'"{name}"\n{name} is a city'} for name in ("Oslo", "Bergen")]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(tmp_path / "corpus.jsonl", tmp_path / "index")
    (tmp_path / f"{tmp_path.name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def found(retriever: Retriever, *queries: str, k: int = 1) -> list[list[str]]:
    answers = asyncio.run(retriever.search(queries, k))
    return [[hit.passage.id for hit in answer] if isinstance(answer, list) else [] for answer in answers]


def config(**settings: Any) -> RetrievalConfig:
    return RetrievalConfig.model_validate(settings)


def test_folder_is_an_index(home: Path) -> None:
    assert found(open_backend("index"), "oslo", "bergen", "") == [["Oslo"], ["Bergen"], []]


def test_non_index_folder_is_rejected(home: Path) -> None:
    problems = {
        "corpus.jsonl": "is a file",
        "nowhere": "does not exist",
        ".": "manifest.json",
        "127.0.0.1:8000": "http://127.0.0.1:8000",
    }
    for name, problem in problems.items():
        with pytest.raises(InputError, match=problem):
            open_backend(name)


def test_address_is_a_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http://127.0.0.1:9", "https://search.example/retrieve"):
        assert isinstance(open_backend(name), SearchClient)
    monkeypatch.setenv("THE_TOKEN", "secret")
    assert "secret" not in repr(open_backend("http://127.0.0.1:9", ServiceConfig(token_env="THE_TOKEN")))


@pytest.mark.parametrize("value", [None, ""])
def test_missing_token_is_rejected(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("THE_TOKEN", value)
    with pytest.raises(ConfigError, match="THE_TOKEN"):
        open_backend("http://127.0.0.1:9", ServiceConfig(token_env="THE_TOKEN"))


def test_provider_is_the_web(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    web = open_backend("web:serper", ServiceConfig(language="en", country="us", pages=True))
    assert isinstance(web, WebSearch)
    assert "secret" not in repr(web)
    with pytest.raises(ConfigError, match=r"'bing'.*serper"):
        open_backend("web:bing")
    monkeypatch.delenv("SERPER_API_KEY")
    with pytest.raises(ConfigError, match="SERPER_API_KEY"):
        open_backend("web:serper")


def test_function_is_imported(home: Path) -> None:
    function = open_backend(f"import:{home.name}.search")
    assert isinstance(function, FunctionRetriever)
    assert found(function, "a", "b") == [["mine"], ["mine"]]
    for spec, problem in (
        ("import:nowhere.search", "cannot import the module 'nowhere'"),
        (f"import:{home.name}.serch", "did you mean 'search'"),
        ("import:search", "import:search"),
        (f"import:{home.name}.asked", "asked"),
    ):
        with pytest.raises(ConfigError, match=problem):
            open_backend(spec)


def test_identity_is_fingerprint_or_name(home: Path) -> None:
    assert backend_identity(str(home / "index")) == manifest.fingerprint(home / "index")
    assert backend_identity("nowhere") is None
    for name in ("http://127.0.0.1:9", "web:serper", "import:nowhere.search"):
        assert backend_identity(name) == name


def test_run_searches_built_index_or_named_backend(home: Path) -> None:
    recording = home / "searches.jsonl"
    assert found(open_retriever(config(), home / "index", recording), "oslo") == [["Oslo"]]
    assert found(open_retriever(config(index="index"), Path("index"), recording), "oslo") == [["Oslo"]]
    own = config(index=f"import:{home.name}.search")
    assert found(open_retriever(own, home / "not built", recording), "oslo") == [["mine"]]
    assert not recording.exists()


@pytest.mark.parametrize("name", ["", "import:"])
def test_recording_replays_without_the_index(name: str, home: Path) -> None:
    recording = home / "searches.jsonl"
    named_as = {"index": f"{name}{home.name}.search"} if name else {}
    recorded = open_retriever(config(record=True, **named_as), home / "index", recording)
    before = found(recorded, "oslo", "plums")
    header = json.loads(recording.read_text().splitlines()[0])
    assert header["index"] == (named_as["index"] if name else manifest.fingerprint(home / "index"))

    replayed = open_retriever(config(replay=str(recording), **named_as), home / "gone", home / "unused.jsonl")
    assert found(replayed, "plums", "oslo") == before[::-1]
    with pytest.raises(ReplayMiss, match=r"searches\.jsonl .*oslo.*k=2"):
        found(replayed, "oslo", k=2)
    assert not (home / "unused.jsonl").exists()


def test_recording_of_another_index_is_rejected(home: Path) -> None:
    recording = home / "searches.jsonl"
    found(open_retriever(config(record=True), home / "index", recording), "oslo")
    (home / "other.jsonl").write_text('{"id": "1", "contents": "Oslo"}\n')
    build(home / "other.jsonl", home / "other")
    with pytest.raises(InputError, match="was recorded from index"):
        open_retriever(config(replay=str(recording), index="other"), home / "other", recording)
    with pytest.raises(InputError, match="was recorded from index"):
        open_retriever(config(replay=str(recording), index="http://127.0.0.1:9"), home / "other", recording)


def test_repeated_search_hits_the_cache(home: Path) -> None:
    recording = home / "searches.jsonl"
    own = f"import:{home.name}.search"
    retriever = open_retriever(config(index=own, cache=10, record=True), home / "index", recording)
    assert found(retriever, "oslo") == found(retriever, "oslo") == [["mine"]]
    assert __import__(home.name).asked == ["oslo"]
    assert len(recording.read_text().splitlines()) == 2


def test_concurrent_queries_are_batched(home: Path) -> None:
    async def many() -> list[list[Hit]]:
        retriever = open_retriever(config(), home / "index", home / "searches.jsonl")
        answers = await asyncio.gather(*(retriever.search([f"oslo {number}"], 1) for number in range(3000)))
        return [answer for (answer,) in answers if isinstance(answer, list)]

    answered = asyncio.run(many())
    assert len(answered) == 3000
    assert {hit.passage.id for hits in answered for hit in hits} == {"Oslo"}


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


def test_pages_of_a_file(file: Path) -> None:
    assert opened(open_pages(RetrievalConfig(pages=str(file)))) == FOUND
    assert opened(FilePages(file), []) == []


def test_missing_pages_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not exist"):
        open_pages(RetrievalConfig(pages=str(tmp_path / "none.jsonl")))


def test_pages_of_the_server_that_is_searched(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In process and over HTTP the same pages are found."""
    monkeypatch.setenv("PAGES_TOKEN", TOKEN)

    async def ask() -> None:
        async with served(PageStore(file)) as url:
            for address in (url, f"{url}/retrieve"):
                service = ServiceConfig(token_env="PAGES_TOKEN")
                pages = open_pages(RetrievalConfig(index=address, service=service))
                assert isinstance(pages, SearchClient)
                assert await pages.access(URLS) == FOUND
                await pages.aclose()

    asyncio.run(ask())


@pytest.mark.parametrize(("token", "cause"), [(TOKEN, "this server has no pages"), ("wrong", "status 401")])
def test_page_server_refuses(token: str, cause: str) -> None:
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


def test_unreachable_page_server() -> None:
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (found,) = opened(SearchClient(url, deadline=0.5), ["a"])
    assert isinstance(found, SearchUnavailable)
    assert "connect" in found.cause


@pytest.mark.parametrize("body", [b"[]", b'{"result": []}', b'{"result": [3]}', b'{"result": [{"text": "x"}]}', b"no"])
def test_invalid_pages_response(body: bytes) -> None:
    (found,) = asyncio.run(answered(body))
    assert isinstance(found, SearchUnavailable)
    assert "unexpected response" in found.cause


@pytest.mark.parametrize("body", [b'{"result": ["text"]}', b'{"result": [{"contents": "text", "url": "b"}]}'])
def test_formats_of_pages(body: bytes) -> None:
    assert asyncio.run(answered(body)) == [Passage("a", "text")]


@pytest.mark.parametrize("index", [None, "folder", "web:serper", "import:mine.search"])
def test_access_without_pages_is_rejected(index: str | None) -> None:
    with pytest.raises(ConfigError, match=r"agent\.tools .*retrieval\.pages"):
        open_pages(RetrievalConfig(index=index))
