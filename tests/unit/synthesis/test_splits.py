"""Questions split by document, and documents held out so that questions become unanswerable."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.corpus import passages as corpus
from sleuth.corpus.questions import QuestionRow
from sleuth.errors import InputError
from sleuth.records import Passage, Question
from sleuth.synthesis.candidate import Candidate
from sleuth.synthesis.documents import DocumentNames, document_of, is_encyclopedic
from sleuth.synthesis.splits import PassageMap, split_by_document
from sleuth.synthesis.unanswerable import hold_out_documents, write_remaining

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


def passage(document: int, position: int = 0) -> Passage:
    return Passage(f"d{document}.md#{position}", f'"Doc {document}"\nText {document}.', {"source": f"d{document}.md"})


def row(number: int, documents: Sequence[int]) -> QuestionRow:
    ids = tuple(f"d{document}.md#0" for document in documents)
    return QuestionRow(Question(f"q{number}", f"What is {number}?", ("x",), "set", ids), {})


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=60), st.integers(0, 5))
def test_no_document_is_in_two_parts(documents: list[list[int]], seed: int) -> None:
    rows = [row(number, found) for number, found in enumerate(documents)]
    known = PassageMap.of(passage(number) for number in range(31))
    parts = split_by_document(rows, known, FRACTIONS, seed)
    assert sorted(each.question.id for part in parts.values() for each in part) == sorted(r.question.id for r in rows)
    seen = [{name for each in part for name in each.question.supporting_ids} for part in parts.values()]
    assert sum(map(len, seen)) == len(set().union(*seen))
    assert split_by_document(rows[::-1], known, FRACTIONS, seed).keys() == parts.keys()


def test_parts_have_their_fractions_although_one_document_is_large() -> None:
    rows = [row(number, [0 if number % 4 == 0 else number]) for number in range(400)]
    parts = split_by_document(rows, PassageMap.of(passage(number) for number in range(400)), FRACTIONS, 1)
    assert [len(parts[name]) for name in FRACTIONS] == pytest.approx([320, 40, 40], abs=6)
    assert parts != split_by_document(rows, PassageMap.of(passage(number) for number in range(400)), FRACTIONS, 2)


def test_unanswerable_questions_are_divided_in_the_same_fractions() -> None:
    rows = [row(number, [number // 5]) for number in range(1000)]
    rows = [
        replace(each, question=replace(each.question, answerable=number // 5 >= 20)) for number, each in enumerate(rows)
    ]
    parts = split_by_document(rows, PassageMap.of(passage(number) for number in range(200)), FRACTIONS, 1)
    assert [len(parts[name]) for name in FRACTIONS] == pytest.approx([800, 100, 100], abs=10)
    lost = [sum(each.question.answerable is False for each in parts[name]) for name in FRACTIONS]
    assert lost == [80, 10, 10]


@pytest.mark.parametrize("seed", range(20))
def test_parts_have_their_fractions_although_documents_mix_both_kinds(seed: int) -> None:
    """One document has 400 questions, of which one is unanswerable, and 29 have one unanswerable of ten."""
    documents = [0] * 400 + [1 + number // 10 for number in range(600)]
    made = [
        (row(number, [document]), number == 0 or (number >= 400 and document <= 29 and number % 10 == 0))
        for number, document in enumerate(documents)
    ]
    rows = [replace(each, question=replace(each.question, answerable=not lost)) for each, lost in made]
    fractions = {"train": 0.7, "validation": 0.1, "test": 0.2}
    parts = split_by_document(rows, PassageMap.of(passage(number) for number in range(61)), fractions, seed)
    assert [len(parts[name]) for name in fractions] == pytest.approx([700, 100, 200], abs=45)
    lost = [sum(each.question.answerable is False for each in parts[name]) for name in fractions]
    assert lost == pytest.approx([21, 3, 6], abs=3)


@pytest.mark.parametrize("fractions", [{}, {"train": 0.5}, {"train": 1.5, "test": -0.5}])
def test_bad_fractions(fractions: dict[str, float]) -> None:
    with pytest.raises(InputError, match="add up to 1"):
        split_by_document([], PassageMap(), fractions, 0)


def test_questions_without_known_passages() -> None:
    with pytest.raises(InputError, match=r"d7\.md#0"):
        split_by_document([row(1, [7])], PassageMap(), FRACTIONS, 0)
    with pytest.raises(InputError, match="supporting_ids"):
        split_by_document([row(1, [])], PassageMap(), FRACTIONS, 0)


def test_held_out_documents(good: list[Candidate], manual: list[Passage], tmp_path: Path) -> None:
    rows = [candidate.row("set", number) for number, candidate in enumerate(good)]
    held = hold_out_documents(rows, manual, 0.2, seed=3)
    marked = [each for each in held.rows if each.question.answerable is False]
    assert len(marked) == 10
    assert {each.question.supporting_ids[0].partition("#")[0] for each in marked} == held.documents
    assert all(each.question.golden_answers and each.extra["evidence"] for each in marked)
    assert held == hold_out_documents(rows, manual, 0.2, seed=3)
    assert held.documents != hold_out_documents(rows, manual, 0.2, seed=4).documents
    count = write_remaining(manual, held.documents, tmp_path / "rest.jsonl")
    remaining = list(corpus.stream(tmp_path / "rest.jsonl"))
    assert count == len(remaining) == 40
    assert not {document_of(each) for each in remaining} & held.documents
    assert remaining[0].extra["position"] == 0


def test_question_that_another_document_answers_is_dropped(good: list[Candidate], manual: list[Passage]) -> None:
    rows = [candidate.row("set", number) for number, candidate in enumerate(good)]
    copies = [Passage(f"copy {each.id}", each.contents, {"source": f"copy {each.id}"}) for each in manual]
    held = hold_out_documents(rows, [*manual, *copies], 0.2, seed=3)
    assert all(each.question.answerable for each in held.rows)
    assert held.dropped == len(held.documents) == 49
    with pytest.raises(InputError, match=r"1\.5"):
        hold_out_documents(rows, manual, 1.5, seed=0)


def test_question_of_two_documents_is_unanswerable_without_one() -> None:
    rows = [row(1, [1, 2]), row(2, [3])]
    held = hold_out_documents(rows, [passage(number) for number in range(5)], 0.4, seed=0)
    joined = next(each for each in held.rows if each.question.id == "q1")
    assert joined.question.answerable is (not held.documents & {"d1.md", "d2.md"})


def test_names_of_documents() -> None:
    titles = [f"{name} — Foo 1.0 documentation" for name in ("os", "2. Files and folders", "Index", "io", "re", "ast")]
    found = [Passage(str(number), f'"{title}"\nx', {"source": title}) for number, title in enumerate(titles)]
    names = DocumentNames.from_passages(found)
    assert [names.name(each) for each in found[:3]] == ["os", "Files and folders", None]
    assert document_of(Passage("a/b.md#12", '"T"\nx')) == "a/b.md"
    assert document_of(Passage("17", '"T"\nx')) == "T"


def test_encyclopedias_are_recognised(manual: list[Passage]) -> None:
    assert is_encyclopedic([Passage("1", '"Oslo"\nOslo is the capital of Norway.')])
    assert not is_encyclopedic([Passage("1", '"Oslo"\nRun the installer. It is quick.')])
    assert not is_encyclopedic([])
