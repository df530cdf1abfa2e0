"""What every retriever promises, over every implementation."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.index import build, load

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


@contextmanager
def bm25_in_process(folder: Path) -> Iterator[Retriever]:
    yield load(folder)


Opener = Callable[[Path], AbstractContextManager[Retriever]]

IMPLEMENTATIONS: dict[str, Opener] = {"bm25 in process": bm25_in_process}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("retriever")
    rows = ({"id": each.id, "contents": each.contents, **each.extra} for each in PASSAGES)
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(home / "corpus.jsonl", home / "index")
    return home / "index"


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Opener:
    return IMPLEMENTATIONS[request.param]


@pytest.fixture
def retriever(folder: Path, implementation: Opener) -> Iterator[Retriever]:
    with implementation(folder) as opened:
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
    assert len({hit.score for hit in hits}) == 1
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
        return await asyncio.gather(*(ask(retriever, [query], 3) for query in QUERIES * 20))

    assert [hits for (hits,) in asyncio.run(at_once())] == found(retriever, QUERIES) * 20


def test_opened_again_it_answers_the_same(folder: Path, retriever: Retriever, implementation: Opener) -> None:
    first = found(retriever, QUERIES)
    with implementation(folder) as again:
        assert found(again, QUERIES) == first
