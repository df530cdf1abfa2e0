"""BM25 beyond the contract of retrievers: terms, zero scores, and a corpus that fails while in use."""

import asyncio
import json
from pathlib import Path

import pytest

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.index import build, load

CONTENTS = ["red apples", "green apples and pears", "the quiet harbour", "", "the of and"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "contents": text}) + "\n" for n, text in enumerate(CONTENTS)))
    return path


@pytest.fixture
def retriever(corpus: Path, tmp_path: Path) -> Retriever:
    build(corpus, tmp_path / "index")
    return load(tmp_path / "index")


def found(retriever: Retriever, query: str, k: int = 10) -> list[Hit]:
    (hits,) = asyncio.run(retriever.search([query], k))
    assert not isinstance(hits, SearchUnavailable)
    return hits


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_other_forms_of_a_word_are_found(retriever: Retriever) -> None:
    assert ids(found(retriever, "an apple")) == ["p0", "p1"]


def test_passages_without_a_term_of_the_query_are_no_hits(retriever: Retriever) -> None:
    assert ids(found(retriever, "harbours")) == ["p2"]


@pytest.mark.parametrize("query", ["", "the of and", "unheard", "?!"])
def test_nothing_found_is_an_answer(retriever: Retriever, query: str) -> None:
    assert found(retriever, query) == []


def test_a_word_said_twice_counts_twice(retriever: Retriever) -> None:
    once, twice = found(retriever, "harbour"), found(retriever, "harbour harbour")
    assert twice[0].score == 2 * once[0].score


def test_the_order_of_the_words_changes_nothing(retriever: Retriever) -> None:
    assert found(retriever, "green red apples pears") == found(retriever, "pears apples red green")


def test_k_is_at_least_one(retriever: Retriever) -> None:
    with pytest.raises(ValueError, match="k is 0, expected at least 1"):
        found(retriever, "apples", 0)


def test_a_passage_that_cannot_be_read_fails_its_query_only(retriever: Retriever, corpus: Path) -> None:
    lines = corpus.read_bytes().splitlines(keepends=True)
    corpus.write_bytes(b"".join([lines[0], b"#" * len(lines[1]), *lines[2:]]))
    apples, red, harbour = asyncio.run(retriever.search(["apples", "red", "harbour"], 5))
    assert isinstance(apples, SearchUnavailable)
    assert apples.query == "apples"
    assert "corpus.jsonl changed after indexing: row 1 is unreadable" in apples.cause
    assert isinstance(red, list)
    assert ids(red) == ["p0"]
    assert isinstance(harbour, list)
    assert ids(harbour) == ["p2"]
