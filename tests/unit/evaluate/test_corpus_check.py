"""A corpus looked at whole: coverage, oddities and lengths."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.evaluate.corpus_check import check, key
from sleuth.records import Passage, Question
from sleuth.reward.answers import cover_em, normalise

texts = st.lists(st.sampled_from(["red", "Green", "the", "blue!", "pear", "a"]), max_size=6).map(" ".join)


def question(name: str, *golds: str, source: str = "set") -> Question:
    return Question(id=name, question="?", golden_answers=golds, data_source=source)


def test_an_answer_is_covered_where_it_stands_as_whole_words() -> None:
    passages = [Passage("1", '"Oslo"\nThe capital of Norway.'), Passage("2", '"Plum"\nA fruit.')]
    asked = [question("a", "Oslo"), question("b", "Nor"), question("c", "nowhere", "the Fruit"), question("d", "the")]
    assert {name for _, name in check(passages, asked).covered} == {"a", "c"}


def test_the_same_id_in_two_sets_is_two_questions() -> None:
    asked = [question("0", "Oslo", source="nq"), question("0", "Bergen", source="hotpotqa")]
    assert check([Passage("1", '"Oslo"\n')], asked).covered == {("nq", "0")}


@settings(max_examples=60, deadline=None)
@given(
    passages=st.lists(texts, min_size=1, max_size=5), golds=st.lists(texts.filter(normalise), min_size=1, max_size=6)
)
def test_coverage_equals_looking_into_every_passage(passages: list[str], golds: list[str]) -> None:
    asked = [question(str(number), gold) for number, gold in enumerate(golds)]
    found = check([Passage(str(n), text) for n, text in enumerate(passages)], asked).covered
    naive = {key(each) for each in asked if any(cover_em(text, each.golden_answers) for text in passages)}
    assert found == naive


def test_empty_and_repeated_passages_are_counted() -> None:
    contents = ['"A"\none two', '"A"\none two', '""\n', '"A"\none two', "   "]
    found = check([Passage(str(n), text) for n, text in enumerate(contents)], [])
    assert (found.passages, found.empty, found.duplicates) == (5, 2, 2)


def test_lengths_are_told_by_quantiles_and_counts() -> None:
    found = check([Passage(str(n), "word " * n) for n in range(1, 101)], [])
    assert found.words == {"shortest": 1, "5%": 5, "median": 50, "95%": 95, "longest": 100}
    assert dict(found.lengths) == {"0-25": 25, "26-50": 25, "51-100": 50, "101-200": 0, "201-400": 0, "over 400": 0}


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    check([Passage("1", "x")] * 2500, [], 2500, lambda *each: told.append(each))
    assert told == [("reading passages", 1000, 2500), ("reading passages", 2000, 2500)]
