"""Real corpora and questions, where they lie beside the checkout, through the same doors as generated ones."""

import asyncio
from pathlib import Path

import pytest

from sleuth.corpus.questions import load
from sleuth.retrieval import index

REAL = Path(__file__).parents[2].parent / "shared" / "data"
NAMES = ("2wikimultihopqa", "hotpotqa", "musique", "nq", "popqa", "squad", "triviaqa")


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_every_question_file_is_read_whole(name: str) -> None:
    for part in ("train", "test"):
        questions = load(REAL / f"{name}.questions.{part}.jsonl.gz")
        assert len({question.id for question in questions}) == len(questions) > 100


@pytest.mark.shared
def test_gold_passages_of_real_questions_are_found(tmp_path: Path) -> None:
    index.build(REAL / "squad.corpus.jsonl.gz", tmp_path / "index")
    questions = load(REAL / "squad.questions.test.jsonl.gz")
    found = asyncio.run(index.load(tmp_path / "index").search([each.question for each in questions], 3))
    right = [
        any(hit.passage.id in question.supporting_ids for hit in hits)
        for question, hits in zip(questions, found, strict=True)
        if isinstance(hits, list)
    ]
    # 98% are known of BM25 with these settings on this corpus.
    assert sum(right) / len(questions) > 0.95
