import pytest

from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.schema import RELATIONS, Kind


@pytest.fixture(scope="module")
def entities() -> Entities:
    return Entities(1000, 5)


def entities_of_kind(entities: Entities, kind: Kind) -> range:
    ranges = [each for each in entities.ids.ranges if each.kind is kind]
    return range(ranges[0].start, ranges[1].start + ranges[1].size)


def test_half_are_people_and_a_quarter_of_each_kind_is_held_out(entities: Entities) -> None:
    sizes = {(each.kind, each.split): each.size for each in entities.ids.ranges}
    assert sum(sizes.values()) == 1000
    assert sizes[Kind.PERSON, "train"] + sizes[Kind.PERSON, "test"] in range(480, 501)
    assert all(sizes[kind, "test"] == (sizes[kind, "train"] + sizes[kind, "test"]) // 4 for kind in Kind)


def test_spouse_is_symmetric(entities: Entities) -> None:
    spouse = RELATIONS["spouse"]
    for person in entities_of_kind(entities, Kind.PERSON):
        partner = entities.value(person, spouse)
        assert partner != person
        assert entities.value(partner, spouse) == person


def test_mentor_is_another_person(entities: Entities) -> None:
    assert all(
        entities.value(person, RELATIONS["mentor"]) != person for person in entities_of_kind(entities, Kind.PERSON)
    )


def test_capital_is_in_its_country(entities: Entities) -> None:
    for country in entities_of_kind(entities, Kind.COUNTRY):
        assert entities.value(entities.value(country, RELATIONS["capital"]), RELATIONS["country"]) == country


def test_sibling_has_the_same_value(entities: Entities) -> None:
    for relation in (each for each in RELATIONS.values() if each.same):
        for entity in entities_of_kind(entities, relation.domain):
            other = entities.sibling(entity, relation, draw=entity * 7)
            assert other != entity
            assert entities.value(other, relation) == entities.value(entity, relation)


def test_unshared_relation_has_no_siblings(entities: Entities) -> None:
    with pytest.raises(ValueError, match="spouse"):
        entities.sibling(0, RELATIONS["spouse"], draw=0)


def test_years_span_two_centuries(entities: Entities) -> None:
    years = {entities.value(person, RELATIONS["born"]) for person in entities_of_kind(entities, Kind.PERSON)}
    assert min(years) < 1810
    assert max(years) > 1990
    assert years <= set(range(1800, 2000))
