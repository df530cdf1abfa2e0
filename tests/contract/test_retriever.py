"""What every retriever promises, over every implementation."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import get_args

import pytest
import uvicorn

from sleuth.config.retrieval import IndexKind, IndexPlan
from sleuth.errors import ReplayMiss, SearchUnavailable
from sleuth.http.server import bind
from sleuth.records import Hit, Passage
from sleuth.retrieval.backends import FunctionRetriever
from sleuth.retrieval.cache import CachedRetriever
from sleuth.retrieval.index import build, load
from sleuth.retrieval.replay import RecordingRetriever, ReplayRetriever
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service.batching import BatchingRetriever
from sleuth.retrieval.service.client import SearchClient
from sleuth.retrieval.service.server import Facts, application
from sleuth.retrieval.wire import scored_row

TWINS = '"Twin"\nThe twins of the harbour tell the same story.'

PASSAGES = [
    Passage("30", '"Oslo"\nOslo is the capital of Norway and its largest city.', {"url": "https://example.org/oslo"}),
    Passage("9", TWINS),
    Passage("10", TWINS),
    Passage("1", '"Bergen"\nBergen is a city and harbour on the west coast of Norway.'),
    Passage("é", TWINS),
    Passage("2", '"Łódź"\nŁódź is a city in central Poland; 東京 is far away 🗺.', {"position": 4}),
    Passage("0", '"Plum"\nA plum is a fruit.'),
]

QUERIES = [
    "capital of Norway",
    "twins of the harbour",
    "",
    "Łódź 東京",
    "a fruit",
    "capital of Norway",
    "city city harbour",
    " \n\t ",
    "🗺",
    "x" * 10_000,
]


Kinds = dict[str, Path]
Opener = Callable[[Kinds], AbstractContextManager[Retriever]]


@contextmanager
def served(retriever: Retriever) -> Iterator[str]:
    """The address of a server in a thread."""
    with bind("127.0.0.1", 0) as listener:
        app = application(retriever, Facts("contract", "any", len(PASSAGES)))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def in_process(kind: str) -> Opener:
    @contextmanager
    def opened(kinds: Kinds) -> Iterator[Retriever]:
        yield load(kinds[kind], device="cpu")

    return opened


def over_http(kind: str) -> Opener:
    @contextmanager
    def opened(kinds: Kinds) -> Iterator[Retriever]:
        with served(load(kinds[kind], device="cpu")) as address:
            yield SearchClient(address)

    return opened


@contextmanager
def gathered(kinds: Kinds) -> Iterator[Retriever]:
    yield BatchingRetriever(load(kinds["bm25"]))


@contextmanager
def cached(kinds: Kinds) -> Iterator[Retriever]:
    yield CachedRetriever(load(kinds["bm25"]), 5)


@contextmanager
def function(kinds: Kinds) -> Iterator[Retriever]:
    """A user's function that answers in the shape of servers."""
    inner = load(kinds["bm25"])

    async def search(queries: list[str], k: int) -> list[object]:
        answers = await inner.search(queries, k)
        return [list(map(scored_row, hits)) for hits in answers if not isinstance(hits, SearchUnavailable)]

    yield FunctionRetriever(search, "import:mine.search")


@contextmanager
def recorded(kinds: Kinds) -> Iterator[Retriever]:
    with TemporaryDirectory() as home:
        opened = RecordingRetriever(load(kinds["bm25"]), Path(home) / "searches.jsonl", "any")
        yield opened
        opened.close()


IMPLEMENTATIONS: dict[str, Opener] = {
    "bm25 in process": in_process("bm25"),
    "dense in process": in_process("dense"),
    "ann in process": in_process("ann"),
    "hybrid in process": in_process("hybrid"),
    "bm25 over http": over_http("bm25"),
    "dense over http": over_http("dense"),
    "gathered": gathered,
    "cached": cached,
    "recorded": recorded,
    "function": function,
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    """An index of each kind over the same passages."""
    home = tmp_path_factory.mktemp("retriever")
    rows = ({"id": each.id, "contents": each.contents, **each.extra} for each in PASSAGES)
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in get_args(IndexKind):
        build(home / "corpus.jsonl", home / kind, IndexPlan.of(kind), device="cpu")
    return {kind: home / kind for kind in get_args(IndexKind)}


@pytest.fixture(params=IMPLEMENTATIONS, scope="module")
def implementation(request: pytest.FixtureRequest) -> Opener:
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(scope="module")
def retriever(kinds: Kinds, implementation: Opener) -> Iterator[Retriever]:
    with implementation(kinds) as opened:
        yield opened


async def ask(retriever: Retriever, queries: list[str], k: int) -> list[list[Hit]]:
    answers = await retriever.search(queries, k)
    assert len(answers) == len(queries)
    return [hits for hits in answers if not isinstance(hits, SearchUnavailable)]


def found(retriever: Retriever, queries: list[str], k: int = 3) -> list[list[Hit]]:
    """The hits of queries all of which are answered."""
    answers = asyncio.run(ask(retriever, queries, k))
    assert len(answers) == len(queries)
    return answers


def test_the_best_passage_comes_first_and_whole(retriever: Retriever) -> None:
    (hits,) = found(retriever, ["What is the capital of Norway?"])
    assert hits[0].passage == PASSAGES[0]


def test_scores_fall(retriever: Retriever) -> None:
    for hits in found(retriever, QUERIES, 5):
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)


def test_equal_scores_come_in_the_order_of_the_ids(retriever: Retriever) -> None:
    (hits,) = found(retriever, ["the twins tell a story"], 3)
    assert [hit.passage.id for hit in hits] == ["10", "9", "é"]


def test_ties_are_broken_before_the_cut(retriever: Retriever) -> None:
    (hits,) = found(retriever, ["the twins tell a story"], 2)
    assert [hit.passage.id for hit in hits] == ["10", "9"]


def test_at_most_k_and_no_passage_twice(retriever: Retriever) -> None:
    for k in (1, 2, 3, 100):
        for hits in found(retriever, QUERIES, k):
            ids = [hit.passage.id for hit in hits]
            assert len(ids) == len(set(ids)) <= min(k, len(PASSAGES))


def test_fewer_hits_are_the_first_of_more(retriever: Retriever) -> None:
    for few, many in zip(found(retriever, QUERIES, 2), found(retriever, QUERIES, 100), strict=True):
        assert few == many[:2]


def test_a_blank_query_finds_nothing(retriever: Retriever) -> None:
    assert found(retriever, ["", " \n\t "]) == [[], []]


def test_no_queries_no_answers(retriever: Retriever) -> None:
    assert found(retriever, []) == []


def test_other_scripts_are_found_and_kept(retriever: Retriever) -> None:
    for hits in found(retriever, ["łódź", "東京"], 1):
        assert [hit.passage for hit in hits] == [PASSAGES[5]]


def test_together_as_alone(retriever: Retriever) -> None:
    assert found(retriever, QUERIES) == [found(retriever, [query])[0] for query in QUERIES]


def test_calls_at_the_same_time_do_not_mix(retriever: Retriever) -> None:
    async def at_once() -> list[list[list[Hit]]]:
        return await asyncio.gather(*(ask(retriever, [query], 3) for query in QUERIES * 8))

    assert [hits for (hits,) in asyncio.run(at_once())] == found(retriever, QUERIES) * 8


def test_opened_again_it_answers_the_same(kinds: Kinds, retriever: Retriever, implementation: Opener) -> None:
    first = found(retriever, QUERIES)
    with implementation(kinds) as again:
        assert found(again, QUERIES) == first


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_the_same_hits_in_process_and_over_http(kinds: Kinds, kind: str) -> None:
    with in_process(kind)(kinds) as here, over_http(kind)(kinds) as there:
        assert found(there, QUERIES, 5) == found(here, QUERIES, 5)


def test_what_was_recorded_is_replayed_to_the_last_bit(kinds: Kinds, tmp_path: Path) -> None:
    file = tmp_path / "searches.jsonl"
    recording = RecordingRetriever(load(kinds["hybrid"], device="cpu"), file, "index")
    first = found(recording, QUERIES)
    recording.close()
    assert found(ReplayRetriever(file, "index"), QUERIES) == first
    with pytest.raises(ReplayMiss, match="never asked"):
        found(ReplayRetriever(file, "index"), ["never asked"])
