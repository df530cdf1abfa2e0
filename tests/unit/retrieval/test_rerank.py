"""Reranking equals scoring each pair alone with transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sleuth.corpus.passages import PassageStore, survey
from sleuth.errors import InputError
from sleuth.retrieval.dense.encoder import load_cross_encoder
from sleuth.retrieval.index import Reranker
from sleuth.retrieval.retriever import Ranking

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
def store(tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
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


def test_rows_are_ordered_by_the_score_of_each_pair_alone(model: Path, store: PassageStore) -> None:
    found = Reranker(Listed(), store, load_cross_encoder(str(model), "cpu"), depth=6).rank(QUERIES, 3)
    for query, ranked in zip(QUERIES, found, strict=True):
        scores = alone(model, query) if query.strip() else {}
        right = sorted(scores, key=scores.__getitem__, reverse=True)[:3]
        assert [row for row, _ in ranked] == right
        assert [score for _, score in ranked] == pytest.approx([scores[row] for row in right], abs=1e-5)
    assert len({score for ranked in found for _, score in ranked}) == 6


def test_query_has_the_same_scores_alone_and_among_others(model: Path, store: PassageStore) -> None:
    ranker = Reranker(Listed(), store, load_cross_encoder(str(model), "cpu"), depth=6)
    assert ranker.rank(QUERIES, 6) == [ranker.rank([query], 6)[0] for query in QUERIES]


def test_equal_scores_come_in_the_order_of_the_ids(small_model: Callable[..., Path], store: PassageStore) -> None:
    scorer = load_cross_encoder(str(small_model(labels=1, classifier=0.0)), "cpu")
    found = Reranker(Listed(), store, scorer, depth=6).rank(["river"], 6)[0]
    assert [store[row].id for row, _ in found] == sorted(IDS)
    assert {score for _, score in found} == {0.0}


def test_scorer_sees_depth_rows_or_as_many_as_are_asked_for(model: Path, store: PassageStore) -> None:
    inner = Listed()
    ranker = Reranker(inner, store, load_cross_encoder(str(model), "cpu"), depth=4)
    assert {row for row, _ in ranker.rank(["river"], 2)[0]} <= {5, 4, 3, 2}
    assert len(ranker.rank(["river"], 5)[0]) == 5
    assert inner.asked == [4, 5]
    assert ranker.rank([" "], 2) == [[]]


def test_non_cross_encoder_is_rejected(small_model: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"minilm .*BertModel"):
        load_cross_encoder("minilm", "cpu")
    with pytest.raises(InputError, match="2 numbers per pair, expected 1"):
        load_cross_encoder(str(small_model(labels=2)), "cpu")


def test_any_text_has_a_score(model: Path) -> None:
    assert np.isfinite(load_cross_encoder(str(model), "cpu").score(["half \ud83d"], ["a"])).all()
