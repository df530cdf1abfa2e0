"""Corpus statistics, recall and hits against hand-computed values, and the reports."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.errors import InputError, SearchUnavailable
from sleuth.evaluate.index_check import IndexCheck, check_corpus, check_index, markdown, question_key, write_check
from sleuth.records import Hit, Passage, Question
from sleuth.reward.answers import cover_em, normalise

texts = st.lists(st.sampled_from(["red", "Green", "the", "blue!", "pear", "a"]), max_size=6).map(" ".join)
PASSAGES = [Passage(str(n), f'"Place {n}"\nThe answer is w{n}.') for n in range(12)]


class FixedSearch:
    """Returns the same passages for every query, and fails for queries that contain "fail"."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        hits = [Hit(passage, 1.0 / (n + 1)) for n, passage in enumerate(PASSAGES[:k])]
        return [SearchUnavailable(query, "broken") if "fail" in query else hits for query in queries]


def question(name: str, gold: str, *supporting: str, text: str = "?", source: str = "one") -> Question:
    return Question(
        id=name, question=text, golden_answers=(gold,), data_source=source, supporting_ids=tuple(supporting)
    )


def checked(questions: list[Question]) -> IndexCheck:
    return asyncio.run(check_index(FixedSearch(), questions, check_corpus(PASSAGES, questions)))


def test_recall_and_hits_by_hand() -> None:
    found = checked([question("a", "w0", "0", "4"), question("b", "w2", "2"), question("c", "w11", "11")])
    part = found.sets["all"]
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


def test_questions_without_gold_passages_are_excluded_from_recall() -> None:
    part = checked([question("a", "w0"), question("b", "w9", "9")]).sets["all"]
    assert part.with_gold == 1
    assert part.recall is not None
    assert part.recall[10].count == 1
    assert checked([question("a", "w0")]).sets["all"].recall is None


def test_failed_searches_are_counted_and_excluded() -> None:
    part = checked([question("a", "w0", "0"), question("b", "w0", "0", text="fail")]).sets["all"]
    assert part.unavailable == 1
    assert part.hit is not None
    assert (part.hit[1].value, part.hit[1].count) == (1.0, 1)


def test_figures_by_set_and_overall() -> None:
    found = checked([question("a", "w0", source="nq"), question("a", "absent", source="popqa")])
    assert list(found.sets) == ["nq", "popqa", "all"]
    assert [part.coverage.value for part in found.sets.values()] == [1.0, 0.0, 0.5]


def test_worst_are_covered_questions_that_were_not_found() -> None:
    found = checked([question("found", "w0"), question("missed", "w11"), question("nowhere", "absent")])
    assert [probe.question.id for probe in found.worst] == ["missed"]


def test_missing_gold_passages_are_reported() -> None:
    found = checked([question("a", "w0", "0", "elsewhere")])
    assert (found.corpus.gold_here, found.corpus.gold) == (1, 2)
    assert "1 of the 2 gold passages are in this index; recall counts" in markdown(found, "x")


def test_no_questions_raise() -> None:
    with pytest.raises(InputError, match="no questions"):
        checked([])


def test_markdown_json_and_html_agree(tmp_path: Path) -> None:
    found = checked([question("a", "w0", "0"), question("b", "w11", "11", text="<script>alert(1)</script>")])
    write_check(found, tmp_path / "out", "my index", {"kind": "bm25", "corpus": {"path": "c.jsonl"}})
    written = json.loads((tmp_path / "out" / "check.json").read_text())
    assert written["sets"]["all"]["hit"]["10"]["value"] == 0.5
    assert written["worst"][0]["id"] == "b"
    page = (tmp_path / "out" / "report.html").read_text()
    assert '0.50<span class="quiet"> [' in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    text = markdown(found, "my index")
    assert "| all | 2 | 1.00 [" in text
    assert "0 passages without text" in text


def test_answers_are_matched_as_whole_words() -> None:
    passages = [Passage("1", '"Oslo"\nThe capital of Norway.'), Passage("2", '"Plum"\nA fruit.')]
    asked = [
        question("a", "Oslo"),
        question("b", "Nor"),
        replace(question("c", "nowhere"), golden_answers=("nowhere", "the Fruit")),
        question("d", "the"),
    ]
    assert {name for _, name in check_corpus(passages, asked).covered} == {"a", "c"}


def test_ids_may_repeat_between_sets() -> None:
    asked = [question("0", "Oslo", source="nq"), question("0", "Bergen", source="hotpotqa")]
    assert check_corpus([Passage("1", '"Oslo"\n')], asked).covered == {("nq", "0")}


@settings(max_examples=60, deadline=None)
@given(
    passages=st.lists(texts, min_size=1, max_size=5), golds=st.lists(texts.filter(normalise), min_size=1, max_size=6)
)
def test_coverage_matches_a_naive_search(passages: list[str], golds: list[str]) -> None:
    asked = [question(str(number), gold) for number, gold in enumerate(golds)]
    found = check_corpus([Passage(str(n), text) for n, text in enumerate(passages)], asked).covered
    naive = {question_key(each) for each in asked if any(cover_em(text, each.golden_answers) for text in passages)}
    assert found == naive


def test_empty_and_duplicate_passages_are_counted() -> None:
    contents = ['"A"\none two', '"A"\none two', '""\n', '"A"\none two', "   "]
    found = check_corpus([Passage(str(n), text) for n, text in enumerate(contents)], [])
    assert (found.passages, found.empty, found.duplicates) == (5, 2, 2)


def test_length_quantiles_and_histogram() -> None:
    found = check_corpus([Passage(str(n), "word " * n) for n in range(1, 101)], [])
    assert found.words == {"shortest": 1, "5%": 5, "median": 50, "95%": 95, "longest": 100}
    assert dict(found.lengths) == {"0-25": 25, "26-50": 25, "51-100": 50, "101-200": 0, "201-400": 0, "over 400": 0}


def test_progress_is_reported() -> None:
    reports: list[tuple[str, int, int]] = []
    check_corpus([Passage("1", "x")] * 2500, [], 2500, lambda *each: reports.append(each))
    assert reports == [("reading passages", 1000, 2500), ("reading passages", 2000, 2500)]
