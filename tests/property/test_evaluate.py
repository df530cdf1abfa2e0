"""Properties of intervals and evaluations."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.evaluate.results import Evaluation, QuestionResult
from sleuth.evaluate.statistics import estimate, paired_difference
from sleuth.records import Question

QUICK = settings(max_examples=60, deadline=None)
SLACK = 1e-9

bits = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=60)
shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20)
counts = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=20)
pairs = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=20)


@QUICK
@given(st.one_of(bits, shares, counts))
def test_intervals_contain_the_mean(values: list[float]) -> None:
    found = estimate(values)
    assert found.count == len(values)
    assert found.low - SLACK <= found.value <= found.high + SLACK


@QUICK
@given(st.one_of(bits, shares))
def test_proportion_intervals_stay_between_0_and_1(values: list[float]) -> None:
    found = estimate(values)
    assert found.low >= -SLACK
    assert found.high <= 1.0 + SLACK


@QUICK
@given(bits, st.randoms(use_true_random=False))
def test_order_does_not_matter_to_wilson(values: list[float], random: Random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert estimate(shuffled) == estimate(values)


@QUICK
@given(bits)
def test_wilson_mirrors(values: list[float]) -> None:
    found, mirrored = estimate(values), estimate([1.0 - value for value in values])
    assert abs(found.low - (1.0 - mirrored.high)) < SLACK
    assert abs(found.high - (1.0 - mirrored.low)) < SLACK


@QUICK
@given(pairs)
def test_swapping_the_sides_mirrors_the_interval(values: list[tuple[float, float]]) -> None:
    before, after = [first for first, _ in values], [second for _, second in values]
    there, back = paired_difference(before, after), paired_difference(after, before)
    for left, right in ((there.value, back.value), (there.low, back.high), (there.high, back.low)):
        assert abs(left + right) < 1e-6


@QUICK
@given(shares)
def test_equal_values_are_never_significant(values: list[float]) -> None:
    found = paired_difference(values, values)
    assert found.value == 0.0
    assert found.low < 0.0 < found.high


results = st.builds(
    lambda name, hops, em: QuestionResult(
        Question(name, "?", ("a",), "test", hops=hops), None, None if em is None else {"em": em, "searches": 1.0}
    ),
    st.text(max_size=3),
    st.integers(1, 5),
    st.sampled_from([None, 0.0, 1.0]),
)


@QUICK
@given(st.lists(results, max_size=30))
def test_kinds_partition_the_questions(rows: list[QuestionResult]) -> None:
    whole = Evaluation(tuple(rows))
    parts = whole.by_kind().values()
    assert sum(len(part.results) for part in parts) == len(rows)
    assert sum(part.unusable for part in parts) == whole.unusable
    if whole.usable:
        right = sum(part.em.value * part.em.count for part in parts if part.usable)
        assert abs(right - whole.em.value * whole.em.count) < 1e-6
