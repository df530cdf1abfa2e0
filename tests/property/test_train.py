"""What holds of every question stream and every packing."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.records import Question, StopReason, Trajectory
from sleuth.train.packing import Row, pack, row_of
from sleuth.train.questions import QuestionStream

QUICK = settings(max_examples=60, deadline=None)

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 1000)


def questions(count: int) -> list[Question]:
    return [Question(f"q{n}", "Who?", ("Ada",), "made") for n in range(count)]


@QUICK
@given(count=SIZES, per_step=SIZES, seed=SEEDS, shuffle=st.booleans())
def test_every_question_comes_once_an_epoch(count: int, per_step: int, seed: int, shuffle: bool) -> None:
    asked = questions(count)
    stream = QuestionStream(asked, per_step, seed, shuffle)
    taken = [question for step in range(3 * count) for question in stream.at(step)]
    assert len(taken) == 3 * count * per_step
    for first in range(0, len(taken), count):
        epoch = taken[first : first + count]
        assert Counter(question.id for question in epoch) == Counter(question.id for question in asked)
        assert shuffle or epoch == asked


@QUICK
@given(count=SIZES, per_step=SIZES, seed=SEEDS, cut=st.integers(0, 20), steps=st.integers(0, 20))
def test_resumed_stream_equals_an_uninterrupted_one(count: int, per_step: int, seed: int, cut: int, steps: int) -> None:
    whole = QuestionStream(questions(count), per_step, seed, shuffle=True)
    resumed = QuestionStream(questions(count), per_step, seed, shuffle=True)
    before = [whole.at(step) for step in range(cut)]
    assert [resumed.at(step) for step in range(cut, cut + steps)] == [whole.at(cut + step) for step in range(steps)]
    assert [resumed.at(step) for step in range(cut)] == before


@QUICK
@given(seed=SEEDS)
def test_epochs_and_seeds_have_orders_of_their_own(seed: int) -> None:
    stream, other = (QuestionStream(questions(40), 40, each, shuffle=True) for each in (seed, seed + 1))
    assert stream.at(0) != stream.at(1)
    assert stream.at(0) != other.at(0)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row of distinct weights, zero where a token is given."""
    weights = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), max_size=12))
    ids = draw(st.lists(st.integers(0, 99), min_size=len(weights) + 1, max_size=len(weights) + 1))
    old = draw(st.lists(st.integers(-9, 0), min_size=12, max_size=12))[: sum(weight > 0 for weight in weights)]
    return Row(tuple(ids), (0.0, *weights), draw(st.integers(-3, 3)), tuple(map(float, old)))


@QUICK
@given(st.lists(rows(), max_size=10), st.integers(1, 40))
def test_every_scored_token_is_packed_once_with_its_own(every: list[Row], tokens: int) -> None:
    packs = list(pack(every, tokens, torch.device("cpu")))
    assert sorted(number for each in packs for number in each.rows) == list(range(len(every)))
    for each in packs:
        assert len(each.rows) == 1 or len(each.ids_N) <= tokens
        mine = [every[number] for number in each.rows]
        assert each.ids_N.tolist() == [token for row in mine for token in row.ids]
        assert each.lengths == tuple(len(row.ids) for row in mine)
        expected = [
            (row.ids[place - 1], row.ids[place], row.weights[place], row.advantage)
            for row in mine
            for place in range(len(row.ids))
            if row.weights[place]
        ]
        found = zip(each.ids_N[each.before_T], each.target_T, each.weight_T, each.advantage_T, strict=True)
        assert [tuple(map(float, token)) for token in found] == expected
        assert each.old_T.tolist() == [logprob for row in mine for logprob in row.old]
        assert each.scored == tuple(len(row.old) for row in mine)


@QUICK
@given(st.lists(st.booleans(), max_size=20))
def test_mask_is_true_exactly_on_sampled_tokens(later: list[bool]) -> None:
    sampled = (False, *later)
    logprobs = tuple(-0.5 * n for n in range(sum(sampled)))
    ids = tuple(range(len(sampled)))
    (question,) = questions(1)
    made = Trajectory(question, 0, 0, 1, ids, sampled, logprobs, (0,) * len(logprobs), (), StopReason.ANSWERED)
    (only,) = pack([row_of(made, 1.0, 1.0)], 1, torch.device("cpu"))
    assert only.target_T.tolist() == [token for token, chosen in zip(ids, sampled, strict=True) if chosen]
    assert only.old_T.tolist() == list(logprobs)
