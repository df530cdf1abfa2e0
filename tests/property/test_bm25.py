"""BM25 equals a naive scorer, selection equals sorting, the store equals the stream."""

import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sleuth.corpus.passages import PassageStore, build_offsets, stream
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.index import build, load
from sleuth.retrieval.selection import best

ALL = 1000

words = st.lists(st.sampled_from(["red", "green", "blue", "pear", "plum"]), max_size=6)
corpora = st.dictionaries(st.text("0123456789ab", min_size=1, max_size=3), words, min_size=1, max_size=12)


def naive(corpus: dict[str, list[str]], query: list[str], k1: float, b: float) -> dict[str, float]:
    """Lucene's BM25 of the passages that hold a word of the query, by the formula."""
    mean = sum(map(len, corpus.values())) / len(corpus)
    scores = dict.fromkeys(corpus, 0.0)
    for word in query:
        holders = sum(word in text for text in corpus.values())
        idf = math.log(1 + (len(corpus) - holders + 0.5) / (holders + 0.5))
        for name, text in corpus.items():
            if times := text.count(word):
                scores[name] += idf * times / (times + k1 * (1 - b + b * len(text) / mean))
    return {name: score for name, score in scores.items() if score > 0}


def write(path: Path, corpus: dict[str, list[str]]) -> None:
    rows = ({"id": name, "contents": " ".join(text)} for name, text in corpus.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def search(retriever: Retriever, query: list[str], k: int) -> list[Hit]:
    (hits,) = asyncio.run(retriever.search([" ".join(query)], k))
    assert not isinstance(hits, SearchUnavailable)
    return hits


@settings(max_examples=60, deadline=None)
@given(
    corpus=corpora,
    query=words,
    k=st.integers(1, 5),
    k1=st.sampled_from([0.5, 0.9, 2.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_bm25_equals_a_naive_scorer(
    corpus: dict[str, list[str]], query: list[str], k: int, k1: float, b: float
) -> None:
    assume(any(corpus.values()))
    with TemporaryDirectory() as folder:
        write(Path(folder, "corpus.jsonl"), corpus)
        build(Path(folder, "corpus.jsonl"), Path(folder, "index"), k1, b)
        retriever = load(Path(folder, "index"))
        ranking, some = search(retriever, query, ALL), search(retriever, query, k)
    scores = {hit.passage.id: hit.score for hit in ranking}
    assert scores == pytest.approx(naive(corpus, query, k1, b), rel=1e-5)
    assert ranking == sorted(ranking, key=lambda hit: (-hit.score, hit.passage.id))
    assert some == ranking[:k]
    for one in scores:
        for other in scores:
            assert Counter(corpus[one]) != Counter(corpus[other]) or scores[one] == scores[other]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([1, 5, 255, 256, 257, 1000, 1024]), k=st.integers(1, 300))
def test_selection_equals_sorting(seed: int, count: int, k: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, random.integers(1, 50), count).astype(np.float64)
    ranks = random.permutation(count).astype(np.uint32)
    expected = sorted((row for row in range(count) if scores[row] > 0), key=lambda row: (-scores[row], ranks[row]))
    assert best(scores, ranks, k).tolist() == expected[:k]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.integers(0, 2)), min_size=1, max_size=8))
def test_the_store_equals_the_stream(rows: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        corpus, offsets = Path(folder, "corpus.jsonl"), Path(folder, "offsets.npy")
        lines = (
            json.dumps({"id": number, "contents": text}, ensure_ascii=number % 2 == 0) + "\n" * (1 + blank)
            for number, (text, blank) in enumerate(rows)
        )
        corpus.write_bytes("".join(lines).encode())
        assert build_offsets(corpus, offsets) == len(rows)
        store = PassageStore(corpus, offsets)
        assert [store[row] for row in range(len(store))] == list(stream(corpus))
        assert [passage.contents for passage in stream(corpus)] == [text for text, _ in rows]
