"""The figures of an evaluation: which measures are shares and which are counts."""

from sleuth.evaluate.intervals import estimate
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.results import means
from sleuth.records import Question


def test_searches_that_are_all_0_or_1_have_the_interval_of_a_count() -> None:
    taken = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    question = Question("q", "Who?", ("Ada",), "test")
    found = means([Mark(question, "Ada", {"em": each, "searches": each}) for each in taken])
    assert found["em"] == estimate(taken)
    assert found["searches"] == estimate(taken, shares=False)
    assert found["searches"] != found["em"]
