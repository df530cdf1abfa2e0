"""Search in an index folder: the retriever, reciprocal rank fusion, and reranking."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sleuth.corpus.passages import PassageStore, survey
from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.dense.encoder import load_cross_encoder
from sleuth.retrieval.index import Hybrid, IndexRetriever, Reranker
from sleuth.retrieval.retriever import Ranking

ROWS = 4


class ScriptedRanker:
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
    (found,) = searched(IndexRetriever(ScriptedRanker(lambda *_: [(2, 0.5), (0, 0.25)]), store), "a")
    assert found == [Hit(store[2], 0.5), Hit(store[0], 0.25)]


def test_k_is_limited_to_the_corpus(store: PassageStore) -> None:
    ranking = ScriptedRanker(all_rows)
    (found,) = searched(IndexRetriever(ranking, store), "a", k=10**9)
    assert ranking.asked == [(["a"], ROWS)]
    assert isinstance(found, list)
    assert len(found) == ROWS


def test_k_is_at_least_one(store: PassageStore) -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        searched(IndexRetriever(ScriptedRanker(all_rows), store), "a", k=0)


def test_ranker_failure_affects_only_its_queries(store: PassageStore) -> None:
    def broken_once(query: str, k: int) -> Ranking:
        if query == "bad":
            raise RuntimeError("CUDA error: out of memory")
        return all_rows(query, k)

    index = IndexRetriever(ScriptedRanker(broken_once), store)
    good, bad = searched(index, "good", "bad")
    assert isinstance(good, SearchUnavailable)
    assert isinstance(bad, SearchUnavailable)
    assert (bad.query, bad.cause) == ("bad", "RuntimeError: CUDA error: out of memory")
    assert isinstance(searched(index, "good")[0], list)


def test_unreadable_passage_fails_only_its_query(store: PassageStore, tmp_path: Path) -> None:
    rows = {"first": 0, "last": ROWS - 1}
    index = IndexRetriever(ScriptedRanker(lambda query, _: [(rows[query], 1.0)]), store)
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
        index = IndexRetriever(ScriptedRanker(slow), store)
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


FUSED_ROWS = 12
BACKWARDS = np.arange(FUSED_ROWS, dtype=np.uint32)[::-1]

rankings = st.lists(st.integers(0, FUSED_ROWS - 1), unique=True)


class Fixed:
    """A ranker that gives every query that is not blank the same rows."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        ranked: Ranking = [(row, 1.0 / (place + 1)) for place, row in enumerate(self.rows[:k])]
        return [ranked if query.strip() else [] for query in queries]


def naive(lists: Sequence[Sequence[int]], k: int, constant: int, depth: int) -> list[int]:
    """The rows by their exact sums."""
    sums: dict[int, Fraction] = {}
    for rows in lists:
        for place, row in enumerate(rows[: max(depth, k)]):
            sums[row] = sums.get(row, Fraction(0)) + Fraction(1, constant + place + 1)
    return sorted(sums, key=lambda row: (-sums[row], BACKWARDS[row]))[:k]


@settings(max_examples=100, deadline=None)
@given(st.lists(rankings, min_size=1, max_size=4), st.integers(1, 15), st.integers(0, 80), st.integers(1, 15))
def test_rows_are_ranked_by_reciprocal_rank_sum(lists: list[list[int]], k: int, constant: int, depth: int) -> None:
    hybrid = Hybrid([Fixed(rows) for rows in lists], BACKWARDS, constant, depth)
    (ranked,) = hybrid.rank(["anything"], k)
    assert [row for row, _ in ranked] == naive(lists, k, constant, depth)


@settings(max_examples=50, deadline=None)
@given(st.lists(rankings, min_size=1, max_size=3), st.integers(1, 8))
def test_smaller_k_is_a_prefix(lists: list[list[int]], k: int) -> None:
    hybrid = Hybrid([Fixed(rows) for rows in lists], BACKWARDS, depth=8)
    assert hybrid.rank(["anything"], k)[0] == hybrid.rank(["anything"], 8)[0][:k]


def test_scores_are_the_sums() -> None:
    hybrid = Hybrid([Fixed([3, 5]), Fixed([5])], BACKWARDS)
    assert hybrid.rank(["anything"], 5) == [[(5, 1 / 61 + 1 / 62), (3, 1 / 61)]]


def test_equal_sums_are_ordered_by_id_across_the_cut() -> None:
    hybrid = Hybrid([Fixed([1]), Fixed([2])], BACKWARDS)
    assert hybrid.rank(["anything"], 1) == [[(2, 1 / 61)]]


def test_same_positions_in_other_rankings_tie() -> None:
    # 1/61 + 1/62 + 1/63 depends on the order in which floats are added.
    lists = [[7, 8, 9], [8, 9, 7], [9, 7, 8]]
    (ranked,) = Hybrid([Fixed(rows) for rows in lists], BACKWARDS).rank(["anything"], 3)
    assert [row for row, _ in ranked] == [9, 8, 7]
    assert len({score for _, score in ranked}) == 1


def test_hybrid_blank_query_has_no_hits() -> None:
    assert Hybrid([Fixed([1]), Fixed([2])], BACKWARDS).rank(["", "x"], 1)[0] == []


def test_hybrid_k_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        Hybrid([Fixed([1])], BACKWARDS).rank(["x"], 0)


CONTENTS = [f'"Title {n}"\n' + "the river of the old town " * n for n in (3, 1, 120, 0, 9, 4)]
IDS = ["f", "c", "e", "b", "d", "a"]
QUERIES = ["Where is the old town?", " ", "river"]


class Listed:
    """Ranks the rows from the last to the first; a blank query has none."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        self.asked.append(k)
        rows = [(row, float(row)) for row in reversed(range(len(CONTENTS)))]
        return [rows[:k] if query.strip() else [] for query in queries]


@pytest.fixture(scope="module")
def reranked_store(tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    folder = tmp_path_factory.mktemp("corpus")
    rows = (json.dumps({"id": name, "contents": text}) for name, text in zip(IDS, CONTENTS, strict=True))
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    survey(folder / "corpus.jsonl", folder)
    return PassageStore(folder / "corpus.jsonl", folder)


@pytest.fixture(scope="module")
def model(small_model: Callable[..., Path]) -> Path:
    return small_model(labels=1)


def alone(folder: Path, query: str) -> dict[int, float]:
    """The score of every row, each pair by itself through transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder)
    pairs = (tokenizer(query, text, truncation=True, max_length=512, return_tensors="pt") for text in CONTENTS)
    with torch.no_grad():
        return {row: float(network(**pair).logits[0, 0]) for row, pair in enumerate(pairs)}


def test_rows_are_ordered_by_the_score_of_each_pair_alone(model: Path, reranked_store: PassageStore) -> None:
    found = Reranker(Listed(), reranked_store, load_cross_encoder(str(model), "cpu"), depth=6).rank(QUERIES, 3)
    for query, ranked in zip(QUERIES, found, strict=True):
        scores = alone(model, query) if query.strip() else {}
        right = sorted(scores, key=scores.__getitem__, reverse=True)[:3]
        assert [row for row, _ in ranked] == right
        assert [score for _, score in ranked] == pytest.approx([scores[row] for row in right], abs=1e-5)
    assert len({score for ranked in found for _, score in ranked}) == 6


def test_query_has_the_same_scores_alone_and_in_a_batch(model: Path, reranked_store: PassageStore) -> None:
    ranker = Reranker(Listed(), reranked_store, load_cross_encoder(str(model), "cpu"), depth=6)
    assert ranker.rank(QUERIES, 6) == [ranker.rank([query], 6)[0] for query in QUERIES]


def test_equal_reranked_scores_are_ordered_by_id(
    small_model: Callable[..., Path], reranked_store: PassageStore
) -> None:
    scorer = load_cross_encoder(str(small_model(labels=1, classifier=0.0)), "cpu")
    found = Reranker(Listed(), reranked_store, scorer, depth=6).rank(["river"], 6)[0]
    assert [reranked_store[row].id for row, _ in found] == sorted(IDS)
    assert {score for _, score in found} == {0.0}


def test_scorer_receives_depth_or_k_rows(model: Path, reranked_store: PassageStore) -> None:
    inner = Listed()
    ranker = Reranker(inner, reranked_store, load_cross_encoder(str(model), "cpu"), depth=4)
    assert {row for row, _ in ranker.rank(["river"], 2)[0]} <= {5, 4, 3, 2}
    assert len(ranker.rank(["river"], 5)[0]) == 5
    assert inner.asked == [4, 5]
    assert ranker.rank([" "], 2) == [[]]


def test_non_cross_encoder_is_rejected(small_model: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"minilm .*BertModel"):
        load_cross_encoder("minilm", "cpu")
    with pytest.raises(InputError, match=r"\b2\b.*expected 1\b"):
        load_cross_encoder(str(small_model(labels=2)), "cpu")


def test_any_text_has_a_score(model: Path) -> None:
    assert np.isfinite(load_cross_encoder(str(model), "cpu").score(["half \ud83d"], ["a"])).all()
