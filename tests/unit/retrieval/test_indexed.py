"""IndexRetriever: serialised searches off the event loop, and failures per query."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sleuth.corpus.passages import PassageStore, survey
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.index import IndexRetriever
from sleuth.retrieval.retriever import Ranking

ROWS = 4


class Ranking:
    """A ranker that does to each call what it is told to, and remembers them."""

    def __init__(self, answer: Callable[[str, int], Ranking]) -> None:
        self._answer = answer
        self.asked: list[tuple[list[str], int]] = []

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        self.asked.append((list(queries), k))
        return [self._answer(query, k) for query in queries]


@pytest.fixture
def store(tmp_path: Path) -> PassageStore:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": f"p{row}", "contents": f"text {row}"}) + "\n" for row in range(ROWS)))
    survey(corpus, tmp_path)
    return PassageStore(corpus, tmp_path)


def searched(index: IndexRetriever, *queries: str, k: int = 3) -> list[list[Hit] | SearchUnavailable]:
    return asyncio.run(index.search(queries, k))


def all_rows(query: str, k: int) -> Ranking:
    return [(row, 1.0 / (row + 1)) for row in range(k)]


def test_rows_become_passages_with_their_scores(store: PassageStore) -> None:
    (found,) = searched(IndexRetriever(Ranking(lambda *_: [(2, 0.5), (0, 0.25)]), store), "a")
    assert found == [Hit(store[2], 0.5), Hit(store[0], 0.25)]


def test_k_is_limited_to_the_corpus(store: PassageStore) -> None:
    ranking = Ranking(all_rows)
    (found,) = searched(IndexRetriever(ranking, store), "a", k=10**9)
    assert ranking.asked == [(["a"], ROWS)]
    assert isinstance(found, list)
    assert len(found) == ROWS


def test_k_is_at_least_one(store: PassageStore) -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        searched(IndexRetriever(Ranking(all_rows), store), "a", k=0)


def test_ranker_failure_affects_only_its_queries(store: PassageStore) -> None:
    def broken_once(query: str, k: int) -> Ranking:
        if query == "bad":
            raise RuntimeError("CUDA error: out of memory")
        return all_rows(query, k)

    index = IndexRetriever(Ranking(broken_once), store)
    good, bad = searched(index, "good", "bad")
    assert isinstance(good, SearchUnavailable)
    assert isinstance(bad, SearchUnavailable)
    assert (bad.query, bad.cause) == ("bad", "RuntimeError: CUDA error: out of memory")
    assert isinstance(searched(index, "good")[0], list)


def test_unreadable_passage_fails_only_its_query(store: PassageStore, tmp_path: Path) -> None:
    rows = {"first": 0, "last": ROWS - 1}
    index = IndexRetriever(Ranking(lambda query, _: [(rows[query], 1.0)]), store)
    content = (tmp_path / "corpus.jsonl").read_bytes()
    (tmp_path / "corpus.jsonl").write_bytes(content[:-9])
    first, last = searched(index, "first", "last")
    assert first == [Hit(store[0], 1.0)]
    assert isinstance(last, SearchUnavailable)
    assert "changed after indexing: row 3 is unreadable" in last.cause


def test_searches_are_serialised_off_the_event_loop(store: PassageStore) -> None:
    inside, most = 0, 0
    threads = set()

    def slow(query: str, k: int) -> Ranking:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threads.add(threading.get_ident())
        time.sleep(0.02)
        inside -= 1
        return all_rows(query, k)

    async def many() -> int:
        index = IndexRetriever(Ranking(slow), store)
        searches = asyncio.gather(*(index.search(["a"], 1) for _ in range(4)))
        turns = 0
        while not searches.done():
            await asyncio.sleep(0.001)
            turns += 1
        await searches
        return turns

    assert asyncio.run(many()) > 8
    assert most == 1
    assert threads.isdisjoint({threading.get_ident()})
