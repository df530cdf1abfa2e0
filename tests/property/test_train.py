"""What holds of every question stream and every packing."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.model.packing import Row, pack, row
from sleuth.records import Question
from sleuth.train.data import QuestionStream
from sleuth.train.ranks import Alone
from sleuth.train.sharding import assign_rows, rank_packs

QUICK = settings(max_examples=60, deadline=None)

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 1000)


def questions(count: int) -> list[Question]:
    return [Question(f"q{n}", "Who?", ("Ada",), "made") for n in range(count)]


@QUICK
@given(count=SIZES, per_step=SIZES, seed=SEEDS, shuffle=st.booleans())
def test_every_question_comes_once_an_epoch(count: int, per_step: int, seed: int, shuffle: bool) -> None:
    asked = questions(count)
    stream = QuestionStream(asked, seed, shuffle)
    taken = [question for step in range(3 * count) for question in stream.take(step * per_step, per_step)]
    assert len(taken) == 3 * count * per_step
    for first in range(0, len(taken), count):
        epoch = taken[first : first + count]
        assert Counter(question.id for question in epoch) == Counter(question.id for question in asked)
        assert shuffle or epoch == asked


@QUICK
@given(count=SIZES, seed=SEEDS, parts=st.lists(st.integers(0, 7), max_size=12))
def test_resumed_stream_equals_an_uninterrupted_one(count: int, seed: int, parts: list[int]) -> None:
    """However many questions a step took: the next begins where it ended."""
    whole = QuestionStream(questions(count), seed, shuffle=True).take(0, sum(parts))
    taken: list[Question] = []
    for part in parts:
        taken += QuestionStream(questions(count), seed, shuffle=True).take(len(taken), part)
    assert taken == whole


@QUICK
@given(seed=SEEDS)
def test_epochs_and_seeds_have_orders_of_their_own(seed: int) -> None:
    stream, other = (QuestionStream(questions(40), each, shuffle=True) for each in (seed, seed + 1))
    assert stream.take(0, 40) != stream.take(40, 40)
    assert stream.take(0, 40) != other.take(0, 40)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A row of distinct weights, zero where a token is given."""
    weights = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), max_size=12))
    ids = draw(st.lists(st.integers(0, 99), min_size=len(weights) + 1, max_size=len(weights) + 1))
    old = draw(st.lists(st.integers(-9, 0), min_size=12, max_size=12))[: sum(weight > 0 for weight in weights)]
    return row(ids, (0.0, *weights), old=list(map(float, old)))


@QUICK
@given(st.lists(rows(), max_size=10), st.integers(1, 40))
def test_every_scored_token_is_packed_once_with_its_own(every: list[Row], tokens: int) -> None:
    made = list(pack(every, tokens, torch.device("cpu")))
    assert sorted(number for each in made for number in each.rows) == list(range(len(every)))
    for each in made:
        assert len(each.rows) == 1 or len(each.ids_N) <= tokens
        mine = [every[number] for number in each.rows]
        assert each.ids_N.tolist() == [token for row in mine for token in row.ids_L.tolist()]
        assert each.lengths == tuple(len(row.ids_L) for row in mine)
        expected = [
            (float(row.ids_L[place - 1]), float(row.ids_L[place]), float(weight), float(old), number)
            for number, row in enumerate(mine)
            for place, weight, old in zip(
                row.positions_S.tolist(), row.columns["weight"], row.columns["old"], strict=True
            )
        ]
        columns = (each.columns["weight"], each.columns["old"], each.row_T)
        found = zip(each.ids_N[each.before_T], each.target_T, *columns, strict=True)
        assert [tuple(map(float, token)) for token in found] == expected
        assert each.scored == tuple(len(row.positions_S) for row in mine)


@QUICK
@given(st.lists(st.integers(1, 30), max_size=25), st.integers(1, 5), st.integers(1, 60))
def test_ranks_share_every_row_once_and_make_as_many_packs(lengths: list[int], world: int, tokens: int) -> None:
    every = [row(range(length), (0.0,) + (1.0,) * (length - 1)) for length in lengths]
    assert sorted(number for share in assign_rows(lengths, world) for number in share) == list(range(len(lengths)))
    made = [list(rank_packs(every, tokens, torch.device("cpu"), Alone(rank, world))) for rank in range(world)]
    assert len({len(each) for each in made}) == 1
    assert sorted(number for each in made for pack in each for number in pack.rows) == list(range(len(lengths)))
    idle = [pack for each in made for pack in each if not pack.rows]
    assert all(len(pack.target_T) == 0 and len(pack.ids_N) for pack in idle)
