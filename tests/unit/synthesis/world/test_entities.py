import pytest

from sleuth.synthesis.world.census import Kind
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.relations import RELATIONS


@pytest.fixture(scope="module")
def entities() -> Entities:
    return Entities(1000, 5)


def every(entities: Entities, kind: Kind) -> range:
    halves = [half for half in entities.census.halves if half.kind is kind]
    return range(halves[0].start, halves[1].start + halves[1].size)


def test_about_half_are_people_and_a_quarter_of_each_kind_is_held_out(entities: Entities) -> None:
    sizes = {(half.kind, half.split): half.size for half in entities.census.halves}
    assert sum(sizes.values()) == 1000
    assert sizes[Kind.PERSON, "train"] + sizes[Kind.PERSON, "test"] in range(480, 501)
    assert all(sizes[kind, "test"] == (sizes[kind, "train"] + sizes[kind, "test"]) // 4 for kind in Kind)


def test_the_spouse_of_a_spouse_is_oneself(entities: Entities) -> None:
    spouse = RELATIONS["spouse"]
    for person in every(entities, Kind.PERSON):
        partner = entities.value(person, spouse)
        assert partner != person
        assert entities.value(partner, spouse) == person


def test_nobody_is_their_own_mentor(entities: Entities) -> None:
    assert all(entities.value(person, RELATIONS["mentor"]) != person for person in every(entities, Kind.PERSON))


def test_a_capital_lies_in_its_country(entities: Entities) -> None:
    for country in every(entities, Kind.COUNTRY):
        assert entities.value(entities.value(country, RELATIONS["capital"]), RELATIONS["country"]) == country


def test_a_sibling_is_another_with_the_same_value(entities: Entities) -> None:
    for relation in (each for each in RELATIONS.values() if each.same):
        for entity in every(entities, relation.domain):
            other = entities.sibling(entity, relation, draw=entity * 7)
            assert other != entity
            assert entities.value(other, relation) == entities.value(entity, relation)


def test_what_is_not_shared_has_no_siblings(entities: Entities) -> None:
    with pytest.raises(ValueError, match="no two subjects share the value of 'spouse'"):
        entities.sibling(0, RELATIONS["spouse"], draw=0)


def test_years_lie_in_two_centuries(entities: Entities) -> None:
    years = {entities.value(person, RELATIONS["born"]) for person in every(entities, Kind.PERSON)}
    assert min(years) < 1810
    assert max(years) > 1990
    assert years <= set(range(1800, 2000))
