"""BM25 equals a naive scorer, and a search that leaves postings out equals one that does not."""

import json
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sleuth.config.retrieval import BM25Settings
from sleuth.retrieval.bm25.build import build_index
from sleuth.retrieval.bm25.inverted_index import InvertedIndex
from sleuth.retrieval.bm25.search import BM25, MaxScore, QueryTerm
from sleuth.retrieval.retriever import Ranking

ALL = 1000

words = st.lists(st.sampled_from(["red", "green", "blue", "pear", "plum"]), max_size=6)
corpora = st.lists(words, min_size=1, max_size=12)


def naive(corpus: list[list[str]], query: list[str], k1: float, b: float) -> dict[int, float]:
    """Lucene's BM25 of the passages that hold a word of the query, by the formula."""
    mean = sum(map(len, corpus)) / len(corpus)
    scores = dict.fromkeys(range(len(corpus)), 0.0)
    for word in query:
        holders = sum(word in text for text in corpus)
        idf = math.log(1 + (len(corpus) - holders + 0.5) / (holders + 0.5))
        for row, text in enumerate(corpus):
            if times := text.count(word):
                scores[row] += idf * times / (times + k1 * (1 - b + b * len(text) / mean))
    return {row: score for row, score in scores.items() if score > 0}


def ranker(folder: Path, corpus: list[list[str]], settings: BM25Settings, ranks: list[int]) -> BM25:
    lines = [json.dumps({"id": str(row), "contents": " ".join(text)}) + "\n" for row, text in enumerate(corpus)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, lines)], dtype=np.uint64))
    build_index(folder / "corpus.jsonl", folder / "offsets.npy", folder / "index", settings, workers=1)
    return BM25(folder / "index", settings, np.array(ranks, np.uint32))


@settings(max_examples=60, deadline=None)
@given(
    corpus=corpora,
    queries=st.lists(words, min_size=1, max_size=3),
    k=st.integers(1, 5),
    k1=st.sampled_from([0.0, 0.5, 0.9, 2.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_bm25_equals_a_naive_scorer(
    corpus: list[list[str]], queries: list[list[str]], k: int, k1: float, b: float
) -> None:
    assume(any(corpus))
    ranks = list(range(len(corpus)))[::-1]
    asked = [" ".join(query) for query in queries]
    with TemporaryDirectory() as folder:
        search = ranker(Path(folder), corpus, BM25Settings(k1=k1, b=b), ranks)
        every, some = search.rank(asked, ALL), search.rank(asked, k)
        alone = [search.rank([query], k)[0] for query in asked]
    assert alone == some
    for query, ranking, first in zip(queries, every, some, strict=True):
        assert dict(ranking) == pytest.approx(naive(corpus, query, k1, b), rel=1e-5)
        assert first == ranking[:k]
        check_order(corpus, ranking, ranks)


def check_order(corpus: list[list[str]], ranking: Ranking, ranks: list[int]) -> None:
    """Best first, ties by rank, and passages of the same words tie."""
    assert ranking == sorted(ranking, key=lambda hit: (-hit[1], ranks[hit[0]]))
    for one, score in ranking:
        for other, another in ranking:
            assert Counter(corpus[one]) != Counter(corpus[other]) or score == another


def drawn_index(random: np.random.Generator, rows: int, sizes: list[int], grain: float) -> InvertedIndex:
    """Terms with so many postings each, and scores of which many are equal."""
    holders = [np.sort(random.choice(rows, size, replace=False)) for size in sizes]
    scores = [random.integers(1, 9, size) * grain * random.integers(1, 5) for size in sizes]
    return InvertedIndex(
        starts=np.cumsum([0, *sizes]),
        rows=np.concatenate(holders).astype(np.int32),
        scores=np.concatenate(scores).astype(np.float32),
        maxima=np.array([each.max() for each in scores], np.float32),
    )


def added_up(index: InvertedIndex, times: list[int], rows: int) -> NDArray[np.float64]:
    scores = np.zeros(rows)
    for term, often in enumerate(times):
        span = slice(index.starts[term], index.starts[term + 1])
        scores[index.rows[span]] += index.scores[span].astype(np.float64) * often
    return scores


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([3000, 20_000]),
    shares=st.lists(st.sampled_from([0.0004, 0.01, 0.05, 0.3, 0.9]), min_size=1, max_size=8),
    k=st.sampled_from([1, 2, 3, 10, 40, 5000]),
    grain=st.sampled_from([0.25, 2.0**-30]),
)
def test_leaving_postings_out_changes_nothing(seed: int, rows: int, shares: list[float], k: int, grain: float) -> None:
    random = np.random.default_rng(seed)
    index = drawn_index(random, rows, [max(1, int(share * rows)) for share in shares], grain)
    times = random.choice([1, 1, 1, 2], len(shares)).tolist()
    starts = index.starts.tolist()
    terms = [
        QueryTerm(float(index.maxima[term]) * often, starts[term], starts[term + 1], often)
        for term, often in enumerate(times)
    ]
    scores, ranks = added_up(index, times, rows), random.permutation(rows)
    expected = sorted(np.flatnonzero(scores).tolist(), key=lambda row: (-scores[row], ranks[row]))[:k]
    search = MaxScore(index, rows)
    for _ in range(2):  # the second search finds nothing left behind by the first
        found, sums = search.top(terms, k)
        order = np.lexsort((ranks[found], -sums))[:k]
        assert found[order].tolist() == expected
        assert sums[order].tolist() == scores[expected].tolist()
