"""An index put to the question: recall and hits by hand, and the reports made of them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sleuth.errors import InputError, SearchUnavailable
from sleuth.evaluate import corpus_check, index_report
from sleuth.evaluate.index_check import IndexCheck, check
from sleuth.records import Hit, Passage, Question

PASSAGES = [Passage(str(n), f'"Place {n}"\nThe answer is w{n}.') for n in range(12)]


class Shelf:
    """Finds for every query the same passages in the same order, and fails where the query says so."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        hits = [Hit(passage, 1.0 / (n + 1)) for n, passage in enumerate(PASSAGES[:k])]
        return [SearchUnavailable(query, "broken") if "fail" in query else hits for query in queries]


def question(name: str, gold: str, *supporting: str, text: str = "?", source: str = "one") -> Question:
    return Question(
        id=name, question=text, golden_answers=(gold,), data_source=source, supporting_ids=tuple(supporting)
    )


def checked(questions: list[Question]) -> IndexCheck:
    return asyncio.run(check(Shelf(), questions, corpus_check.check(PASSAGES, questions)))


def test_recall_and_hits_by_hand() -> None:
    found = checked([question("a", "w0", "0", "4"), question("b", "w2", "2"), question("c", "w11", "11")])
    part = found.parts["all"]
    assert part.recall is not None
    assert part.hit is not None
    assert {k: round(each.value, 4) for k, each in part.recall.items()} == {
        1: round(0.5 / 3, 4),
        3: round(1.5 / 3, 4),
        5: round(2 / 3, 4),
        10: round(2 / 3, 4),
    }
    assert [round(each.value, 4) for each in part.hit.values()] == [0.3333, 0.6667, 0.6667, 0.6667]
    assert part.coverage.value == 1.0
    assert all(each.low <= each.value <= each.high for each in (*part.recall.values(), *part.hit.values()))


def test_questions_without_gold_passages_are_in_no_recall() -> None:
    part = checked([question("a", "w0"), question("b", "w9", "9")]).parts["all"]
    assert part.with_gold == 1
    assert part.recall is not None
    assert part.recall[10].count == 1
    assert checked([question("a", "w0")]).parts["all"].recall is None


def test_a_failed_search_is_counted_and_in_no_mean() -> None:
    part = checked([question("a", "w0", "0"), question("b", "w0", "0", text="fail")]).parts["all"]
    assert part.unavailable == 1
    assert part.hit is not None
    assert (part.hit[1].value, part.hit[1].count) == (1.0, 1)


def test_sets_stand_apart_and_together() -> None:
    found = checked([question("a", "w0", source="nq"), question("a", "absent", source="popqa")])
    assert list(found.parts) == ["nq", "popqa", "all"]
    assert [part.coverage.value for part in found.parts.values()] == [1.0, 0.0, 0.5]


def test_the_worst_are_those_whose_answer_is_there_and_not_found() -> None:
    found = checked([question("found", "w0"), question("missed", "w11"), question("nowhere", "absent")])
    assert [probe.question.id for probe in found.worst] == ["missed"]


def test_gold_passages_that_are_not_there_are_said() -> None:
    found = checked([question("a", "w0", "0", "elsewhere")])
    assert (found.corpus.gold_here, found.corpus.gold) == (1, 2)
    assert "1 of the 2 gold passages are in this index; recall counts" in index_report.markdown(found, "x")


def test_no_questions_is_an_error() -> None:
    with pytest.raises(InputError, match="no questions"):
        checked([])


def test_reports_say_the_same_in_markdown_json_and_html(tmp_path: Path) -> None:
    found = checked([question("a", "w0", "0"), question("b", "w11", "11", text="<script>alert(1)</script>")])
    index_report.write(found, tmp_path / "out", "my index", {"kind": "bm25", "corpus": {"path": "c.jsonl"}})
    written = json.loads((tmp_path / "out" / "check.json").read_text())
    assert written["sets"]["all"]["hit"]["10"]["value"] == 0.5
    assert written["worst"][0]["id"] == "b"
    page = (tmp_path / "out" / "report.html").read_text()
    assert '0.50<span class="quiet"> [' in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    text = index_report.markdown(found, "my index")
    assert "| all | 2 | 1.00 [" in text
    assert "0 passages without text" in text
