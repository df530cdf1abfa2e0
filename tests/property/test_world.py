from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.permutation import Permutation, mix64
from sleuth.synthesis.world.schema import RELATIONS, IdRanges
from sleuth.synthesis.world.world import World

sizes = st.integers(100, 3000)
seeds = st.integers(0, 2**32)


@given(size=st.integers(1, 500), seed=seeds)
def test_permutation_is_a_bijection(size: int, seed: int) -> None:
    shuffled = Permutation(size, seed)
    assert sorted(map(shuffled, range(size))) == list(range(size))
    assert all(shuffled.inverse(shuffled(index)) == index for index in range(size))


@given(size=st.integers(1, 2**20), seed=seeds, draw=seeds)
def test_large_permutation_inverts(size: int, seed: int, draw: int) -> None:
    shuffled, index = Permutation(size, seed), draw % size
    assert 0 <= shuffled(index) < size
    assert shuffled.inverse(shuffled(index)) == index


@given(value=st.integers(0, 2**64 - 2))
def test_hashes_of_neighbours_differ_in_many_bits(value: int) -> None:
    assert 5 < (mix64(value) ^ mix64(value + 1)).bit_count() < 59


@given(passages=st.integers(100, 1_000_000))
def test_id_ranges_cover_every_entity_once(passages: int) -> None:
    ids = IdRanges(passages)
    end = 0
    for each in ids.ranges:
        assert each.start == end
        assert each.size >= 2
        assert ids.of(each.start) == ids.of(each.start + each.size - 1) == each
        end += each.size
    assert end == passages


@settings(max_examples=25)
@given(passages=st.integers(100, 1_000_000), seed=seeds, draws=st.lists(seeds, min_size=20, max_size=20))
def test_facts_stay_within_the_split_of_their_subject(passages: int, seed: int, draws: list[int]) -> None:
    entities = Entities(passages, seed)
    for entity in (draw % passages for draw in draws):
        subject = entities.ids.of(entity)
        assert entities.stated(entity)
        for relation in RELATIONS.values():
            if relation.domain is subject.kind and relation.range:
                value = entities.ids.of(entities.value(entity, relation))
                assert (value.kind, value.split) == (relation.range, subject.split)


@settings(max_examples=15, deadline=None)
@given(passages=sizes, seed=seeds, question_seed=seeds)
def test_question_hops_are_stated_in_passages(passages: int, seed: int, question_seed: int) -> None:
    world = World(passages, seed)
    subjects: dict[str, set[str]] = {}
    for split in ("train", "test"):
        generated = list(world.questions(split, 100, question_seed))
        subjects[split] = {hop.passage_id for each in generated for hop in each.hops}
        for hop in (hop for each in generated for hop in each.hops):
            passage = world.passage(int(hop.passage_id))
            assert passage.title == hop.subject
            assert hop.value in passage.text
    assert not subjects["train"] & subjects["test"]
