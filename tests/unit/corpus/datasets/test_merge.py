"""Merging question sets: what is dropped and why, order and ids of the rest."""

import pytest

from sleuth.corpus.datasets.merge import DropReason, MergeRules, merge, question_key
from sleuth.corpus.questions import QuestionRow
from sleuth.errors import InputError
from sleuth.records import Question


def row(name: str, asked: str, source: str = "nq", answerable: bool | None = None) -> QuestionRow:
    return QuestionRow(Question(name, asked, ("A",), source, answerable=answerable), {})


MANY = [row(f"q{n}", f"Who is number {n}?") for n in range(100)]


def ids(rows: tuple[QuestionRow, ...]) -> list[str]:
    return [each.question.id for each in rows]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Who wrote “Emma”?", " who  wrote Emma"),
        ("WHO IS STRAßE?", "who is strasse"),
        ("Who is Zoe\u0308?", "who is zo\u00eb"),
        ("ﬁnal score", "Final score?"),
        ("What´s a “quote”？", "what's a ``quote''"),
    ],
)
def test_equal_questions(one: str, other: str) -> None:
    assert question_key(one) == question_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Who is A?", "Who is the A?"),
        ("1 2", "12"),
        ("???", "!!!"),
        ("Zoe", "Zoë"),
        ("Who designed C?", "Who designed C++?"),
        ("Is 3 > 2?", "Is 3 < 2?"),
        ("What costs $5?", "What costs €5?"),
        ("ปูคืออะไร", "ปู่คืออะไร"),
        ("किला कहाँ है?", "कीला कहाँ है?"),
    ],
)
def test_different_questions(one: str, other: str) -> None:
    assert question_key(one) != question_key(other)


def test_each_question_is_dropped_for_one_reason_and_counted() -> None:
    rows = [
        row("a", "Who?"),
        row("b", "who", "hotpotqa"),
        row("c", "Where?", answerable=False),
        row("d", "When?", "hotpotqa", answerable=True),
        row("e", "In a test?", "hotpotqa"),
    ]
    merged = merge(rows, MergeRules(answerable=True), {question_key("in a TEST"): "test_9"})
    assert ids(merged.rows) == ["a", "d"]
    assert [(each.row.question.id, each.reason, each.same_as) for each in merged.dropped] == [
        ("b", DropReason.REPEATED, "a"),
        ("c", DropReason.UNANSWERABLE, None),
        ("e", DropReason.TESTED, "test_9"),
    ]
    none = dict.fromkeys((reason.value for reason in DropReason), 0)
    assert merged.counts() == {
        "hotpotqa": {"read": 3, **none, "in a test set": 1, "twice": 1, "kept": 1},
        "nq": {"read": 2, **none, "not answerable": 1, "kept": 1},
    }


def test_order_of_the_files_or_of_the_seed() -> None:
    assert ids(merge(MANY, MergeRules()).rows) == ids(tuple(MANY))
    shuffled = ids(merge(MANY, MergeRules(seed=1)).rows)
    assert shuffled != ids(tuple(MANY))
    assert sorted(shuffled) == sorted(ids(tuple(MANY)))
    assert shuffled == ids(merge(MANY, MergeRules(seed=1)).rows)
    assert shuffled != ids(merge(MANY, MergeRules(seed=2)).rows)


def test_limit_samples_from_all_files() -> None:
    merged = merge(MANY, MergeRules(limit=20))
    kept = ids(merged.rows)
    assert kept == sorted(kept, key=lambda name: int(name[1:]))
    assert len(kept) == 20
    assert kept[-1] > "q50"
    assert merged.counts()["nq"]["over the limit"] == 80
    assert ids(merge(MANY, MergeRules(limit=20, seed=3)).rows) != kept
    assert len(merge(MANY, MergeRules(limit=200)).rows) == 100


def test_repeated_questions_can_be_kept_and_conflicting_ids_get_suffixes() -> None:
    merged = merge([row("a", "Who?"), row("a", "who"), row("a", "Where?")], MergeRules(repeated=False))
    assert ids(merged.rows) == ["a", "a_2", "a_3"]


def test_filter_without_effect_is_refused() -> None:
    with pytest.raises(InputError, match="no question says whether it is answerable"):
        merge(MANY, MergeRules(answerable=True))
