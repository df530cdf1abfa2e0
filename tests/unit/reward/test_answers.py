"""Answer metrics against cases worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleuth.records import Question
from sleuth.reward.answers import abstains, cover_em, exact_match, f1, is_abstention, normalise, warn_wordless


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  An   apple\na day ", "apple day"),
        ("U.S.A.", "usa"),
        ("Theodore and Anna", "theodore and anna"),
        ("A", ""),
        ("Österreich", "österreich"),
        ("", ""),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "golds", "em", "overlap", "cover"),
    [
        ("The Beatles.", ("beatles",), 1.0, 1.0, 1.0),
        ("Ringo Starr", ("John Lennon", "ringo starr"), 1.0, 1.0, 1.0),
        # shared {paris} = 1; precision 1/2, recall 1/1; F1 = 2 * 1 / (2 + 1)
        ("Paris France", ("Paris",), 0.0, 2 / 3, 1.0),
        # shared {new, york} = 2 of 2 said and 3 gold: 4 / 5
        ("New York", ("New York City",), 0.0, 4 / 5, 0.0),
        # a repeated word is shared as often as the gold has it: 2 * 1 / (3 + 1)
        ("no no no", ("no",), 0.0, 1 / 2, 1.0),
        ("Parisian", ("Paris",), 0.0, 0.0, 0.0),
        ("York New", ("New York",), 0.0, 1.0, 0.0),
        ("Oslo", ("Bergen",), 0.0, 0.0, 0.0),
        ("", ("Oslo",), 0.0, 0.0, 0.0),
        ("Oslo", (), 0.0, 0.0, 0.0),
        (None, ("Oslo", ""), 0.0, 0.0, 0.0),
    ],
)
def test_metrics(answer: str | None, golds: tuple[str, ...], em: float, overlap: float, cover: float) -> None:
    assert exact_match(answer, golds) == em
    assert f1(answer, golds) == pytest.approx(overlap)
    assert cover_em(answer, golds) == cover


@pytest.mark.parametrize("gold", ["A", "the", "---", "*", "The A.", "", " "])
@pytest.mark.parametrize("answer", ["", " ", "an", "!", "?!", "an an"])
def test_a_gold_that_normalises_to_nothing_makes_no_empty_answer_right(gold: str, answer: str) -> None:
    golds = ("Oslo", gold)
    assert exact_match(answer, golds) == f1(answer, golds) == cover_em(answer, golds) == 0.0


@pytest.mark.parametrize(("answer", "gold"), [("*", "*"), (" A ", "a"), ("the  the", "The The"), ("---", "---")])
def test_a_gold_that_normalises_to_nothing_is_matched_as_it_is_written(answer: str, gold: str) -> None:
    assert exact_match(answer, (gold,)) == f1(answer, (gold,)) == cover_em(answer, (gold,)) == 1.0
    assert str(warn_wordless([Question("q1", "?", ("Oslo", gold), "test")])).startswith("1 gold answer")


def test_a_gold_of_articles_alone_is_not_in_every_answer() -> None:
    assert exact_match("A", ("A",)) == f1("A", ("A",)) == cover_em("A", ("A",)) == 1.0
    assert f1("Oslo", ("A",)) == cover_em("Oslo", ("A",)) == 0.0


def test_gold_answers_with_words_need_no_saying() -> None:
    assert warn_wordless([Question("q1", "?", ("The Oslo", "A-1"), "test")]) is None


@pytest.mark.parametrize(
    "answer",
    [
        "I don't know", "I don\u2019t know.", "i do not know", "Unknown", "The answer is unknown.", "No answer",
        "Not known",
        "I cannot determine this from the documents.", "There is not enough information to answer.",
        "Sorry, I don't know that.",
        "The documents do not mention it.", "The answer cannot be determined from the search results.", "UNANSWERABLE",
        "I could not find the answer.", "I don't know the answer", "No information available",
    ],
)  # fmt: skip
def test_abstentions(answer: str) -> None:
    assert is_abstention(answer)
    assert abstains(answer, ("Oslo",))


@pytest.mark.parametrize(
    "answer",
    [
        None, "", "   ", "Oslo", "The Unknown Soldier", "I Don't Know How She Does It", "No", "none", "Nobody knows",
        "No Country for Old Men", "I don't know for sure, but it is Oslo", "Information Society", "know", "don't",
    ],
)  # fmt: skip
def test_answers_that_are_no_abstentions(answer: str | None) -> None:
    assert not is_abstention(answer)


def test_a_gold_answer_is_no_abstention() -> None:
    """A film may be called Unknown."""
    assert is_abstention("Unknown")
    assert not abstains("unknown.", ("The Unknown",))
    assert not abstains(None, ())


@given(st.text(max_size=200))
def test_any_text_can_be_asked_about(text: str) -> None:
    assert is_abstention(text) in (True, False)
