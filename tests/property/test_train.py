"""What holds of every question stream and every packing."""

from collections import Counter
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.algorithms.normalise import Normalisation, token_weights
from sleuth.model.packing import Row, pack, row
from sleuth.records import Question, Segment, StopReason, Trajectory
from sleuth.train.data import Mixture, QuestionStream
from sleuth.train.experience import build_experiences, experience_rows
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


@QUICK
@given(
    files=st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 9.0)), min_size=2, max_size=4),
    seed=SEEDS,
    parts=st.lists(st.integers(0, 20), max_size=8),
)
def test_mixture_keeps_its_proportions_and_asks_the_questions_of_a_file_alike(
    files: list[tuple[int, float]], seed: int, parts: list[int]
) -> None:
    sizes, weights = zip(*files, strict=True)
    mixture = Mixture(sizes, weights)
    asked, counts = questions(sum(sizes)), mixture.counts()
    stream = QuestionStream(asked, seed, shuffle=True, mixture=mixture)
    share = [sum(sizes) * weight / sum(weights) for weight in weights]
    assert all(count == 1 or abs(count - each) <= 1 for count, each in zip(counts, share, strict=True))
    taken = stream.take(0, 5 * sum(counts))
    times = Counter(int(question.id[1:]) for question in taken)
    begin = 0
    for size, count in zip(sizes, counts, strict=True):
        of_file = [times[number] for number in range(begin, begin + size)]
        assert sum(of_file) == 5 * count
        assert max(of_file) - min(of_file) <= 1
        begin += size
    again: list[Question] = []
    for part in parts:
        again += QuestionStream(asked, seed, shuffle=True, mixture=mixture).take(len(again), part)
    assert again == stream.take(0, sum(parts))


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


@st.composite
def attempts(draw: st.DrawFn) -> Trajectory:
    """Attempts of an agent that continues, forks and rewrites its contexts; few tokens, so that prefixes are common."""
    segments: list[Segment] = []
    for _ in range(draw(st.integers(0, 4))):
        forks: bool = draw(st.booleans())
        parent = draw(st.integers(0, len(segments) - 1)) if segments and forks else None
        shared = draw(st.integers(1, len(segments[parent].ids))) if parent is not None else 0
        prefix = segments[parent].ids[:shared] if parent is not None else (draw(st.integers(0, 1)),)
        own = draw(st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=6))
        sampled = (False,) * len(prefix) + tuple(is_sampled for _, is_sampled in own)
        # The logprob of a token is its number in the attempt.
        first = sum(len(each.logprobs) for each in segments)
        logprobs = tuple(float(first + number) for number in range(sum(sampled)))
        ids = (*prefix, *(token for token, _ in own))
        role = draw(st.sampled_from(["", "writer"]))
        segments.append(Segment(ids, sampled, logprobs, (0,) * len(logprobs), role, parent, shared))
    return Trajectory(questions(1)[0], 0, 0, 1, tuple(segments), (), StopReason.ANSWERED)


@QUICK
@given(st.lists(attempts(), min_size=1, max_size=4), st.sampled_from([(), ("writer",)]))
def test_every_trained_token_has_one_place_after_its_own_context(
    every: list[Trajectory], roles: tuple[str, ...]
) -> None:
    experiences = build_experiences(every, 1.0, roles=roles)
    made = experience_rows(experiences)
    for number, (experience, trajectory) in enumerate(zip(experiences, every, strict=True)):
        contexts = {}
        for segment in trajectory.segments:
            places = [place for place, each in enumerate(segment.sampled) if each]
            for place, logprob in zip(places, segment.logprobs, strict=True):
                if not roles or segment.role in roles:
                    contexts[logprob] = segment.ids[: place + 1]
        found = [
            (logprob, tuple(row.ids_L[: place + 1].tolist()))
            for row in made
            if row.trajectory == number
            for place, logprob in zip(row.positions_S.tolist(), row.columns["rollout"].tolist(), strict=True)
        ]
        assert sorted(found) == sorted(contexts.items())
        assert experience.columns["rollout"].tolist() == list(contexts)
        joined = experience.join([row.columns["rollout"] for row in made if row.trajectory == number])
        assert joined.tolist() == list(contexts)


@QUICK
@given(st.lists(attempts(), min_size=1, max_size=4), st.sampled_from(["token", "sequence", "constant"]))
def test_segments_weigh_as_one(every: list[Trajectory], kind: Normalisation) -> None:
    """The weights of a trajectory are those of a plain one with as many sampled tokens."""

    def weights(trajectories: list[Trajectory]) -> list[list[float]]:
        experiences = build_experiences(trajectories, 1.0)
        lengths_N = torch.tensor([len(each) for each in experiences], dtype=torch.float64)
        per_token = token_weights(lengths_N, kind, 7).tolist()
        return [(each.columns["weight"] * weight).tolist() for each, weight in zip(experiences, per_token, strict=True)]

    plain = [
        replace(each, segments=(Segment((0,) * (1 + count), (False,) + (True,) * count, each.logprobs, each.versions),))
        for each in every
        for count in (len(each.logprobs),)
    ]
    assert weights(every) == weights(plain)
