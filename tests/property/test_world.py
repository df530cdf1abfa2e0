from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.synthesis.world.census import Census
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.permutation import Permutation, mix
from sleuth.synthesis.world.relations import RELATIONS
from sleuth.synthesis.world.world import World

sizes = st.integers(100, 3000)
seeds = st.integers(0, 2**32)


@given(size=st.integers(1, 500), seed=seeds)
def test_a_permutation_is_a_bijection_with_its_inverse(size: int, seed: int) -> None:
    shuffled = Permutation(size, seed)
    assert sorted(map(shuffled, range(size))) == list(range(size))
    assert all(shuffled.inverse(shuffled(index)) == index for index in range(size))


@given(size=st.integers(1, 2**20), seed=seeds, draw=seeds)
def test_a_large_permutation_inverts(size: int, seed: int, draw: int) -> None:
    shuffled, index = Permutation(size, seed), draw % size
    assert 0 <= shuffled(index) < size
    assert shuffled.inverse(shuffled(index)) == index


@given(value=st.integers(0, 2**64 - 2))
def test_neighbours_hash_apart(value: int) -> None:
    assert 5 < (mix(value) ^ mix(value + 1)).bit_count() < 59


@given(passages=st.integers(100, 1_000_000))
def test_the_halves_cover_every_entity_once(passages: int) -> None:
    census = Census(passages)
    end = 0
    for half in census.halves:
        assert half.start == end
        assert half.size >= 2
        assert census.of(half.start) == census.of(half.start + half.size - 1) == half
        end += half.size
    assert end == passages


@settings(max_examples=25)
@given(passages=st.integers(100, 1_000_000), seed=seeds, draws=st.lists(seeds, min_size=20, max_size=20))
def test_facts_stay_in_the_half_of_their_subject(passages: int, seed: int, draws: list[int]) -> None:
    entities = Entities(passages, seed)
    for entity in (draw % passages for draw in draws):
        subject = entities.census.of(entity)
        assert entities.stated(entity)
        for relation in RELATIONS.values():
            if relation.domain is subject.kind and relation.range:
                value = entities.census.of(entities.value(entity, relation))
                assert (value.kind, value.split) == (relation.range, subject.split)


@settings(max_examples=15, deadline=None)
@given(passages=sizes, seed=seeds, question_seed=seeds)
def test_questions_of_any_world_stand_on_its_passages(passages: int, seed: int, question_seed: int) -> None:
    world = World(passages, seed)
    subjects: dict[str, set[str]] = {}
    for split in ("train", "test"):
        posed = list(world.pose(split, 100, question_seed))
        subjects[split] = {hop.passage_id for each in posed for hop in each.hops}
        for hop in (hop for each in posed for hop in each.hops):
            passage = world.passage(int(hop.passage_id))
            assert passage.title == hop.subject
            assert hop.value in passage.text
    assert not subjects["train"] & subjects["test"]
