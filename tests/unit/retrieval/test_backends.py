"""Backends by name: index folder, server, web search, function; with recording, replay and cache."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.errors import ConfigError, InputError, ReplayMiss
from sleuth.records import Hit
from sleuth.retrieval import manifest
from sleuth.retrieval.backends import FunctionRetriever, backend_identity, open_backend, open_retriever
from sleuth.retrieval.index import build
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service.client import SearchClient
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


def config(**knobs: Any) -> RetrievalConfig:
    return RetrievalConfig.model_validate(knobs)


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
        ("import:search", "names no function"),
        (f"import:{home.name}.asked", "cannot be called"),
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
    with pytest.raises(ReplayMiss, match=r"searches\.jsonl has no answer for 'oslo' with k=2"):
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
