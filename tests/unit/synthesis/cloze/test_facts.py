"""Fact extraction: each relation on an opening sentence written for it."""

import pytest

from sleuth.records import Passage
from sleuth.synthesis.cloze.facts import Subject, extract_subject
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.topic import parse_topic

KNOWN = [
    ("Ann Poe", "Ann Poe (born 1950) is a singer. She lives in York."),
    ("Ann Lee", "Ann Lee (born 1951) is a singer. She lives in York."),
    ("Carl Lee", "Carl Lee (born 1951) is a singer. He lives in York."),
    ("Carl Roe", "Carl Roe (born 1951) is a singer. He lives in York."),
]


def subject_of(title: str, text: str) -> Subject:
    """The subject of a passage in a corpus with a few given names."""
    pages = [Passage(f"p{n}", f'"{name}"\n{told}') for n, (name, told) in enumerate([*KNOWN, (title, text)])]
    lexicon = Lexicon.from_passages(enumerate(pages))
    found = parse_topic(pages[-1], lexicon)
    assert found is not None
    return extract_subject(found, lexicon)


def facts(title: str, text: str) -> dict[str, str]:
    return {relation.value: fact.value for relation, fact in subject_of(title, text).facts.items()}


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ("(born 9 May 1994 in Athens) is a Greek swimmer.", {"born": "9 May 1994", "birthplace": "Athens"}),
        ("( born May 9, 1994) is a Greek swimmer.", {"born": "May 9, 1994", "nationality": "Greek"}),
        (
            "(1 May 1851, Stuttgart – 9 March 1913, Ulm) was a scholar.",
            {"place of death": "Ulm", "died": "9 March 1913"},
        ),
        ("(Ourense, 7 June 1903 – Poio, 17 August 1936) was a painter.", {"birthplace": "Ourense"}),
        ("(1850–1901) was a Swiss painter. Born in Bern, Moss taught in Ulm.", {"birthplace": "Bern", "born": "1850"}),
        ("(born 1900) was a film director. She died in Rome, Italy.", {"place of death": "Rome, Italy"}),
        ("(born 1900) is an actress. She graduated from Leeds University in 1920.", {"school": "Leeds University"}),
        ("(born 1900) was the second daughter of Carl Moss and his wife Ann Hill.", {"father": "Carl Moss"}),
        ("(born 1900) was the second daughter of Carl Moss and his wife Ann Hill.", {"mother": "Ann Hill"}),
        ("(born 1900) is an actress. She is married to Carl Roe.", {"husband": "Carl Roe"}),
        ("(born 1900) is an actress and the sister of Carl Roe.", {"sibling": "Carl Roe"}),
        ("(born 1900) is an actress. She sang with her husband, Carl Lee.", {"husband": "Carl Lee"}),
    ],
)
def test_facts_about_people(opening: str, expected: dict[str, str]) -> None:
    found = facts("Ida Moss", f"Ida Moss {opening}")
    assert expected.items() <= found.items(), found


@pytest.mark.parametrize(
    ("opening", "absent"),
    [
        ("(c. 1285 – 1354) was a poet.", "born"),
        ("(1586 - c. 1646) was a poet.", "died"),
        ("(born Anna Maria Moss, 14 February 1884) was a poet.", "birthplace"),
        ("(born 1900) is an Iranian-born British actress.", "nationality"),
        ("(born 1900) is a French-American actress.", "nationality"),
        ("(born 1900) is an actress. She married Carl Roe in 1920 and was married to Carl Lee in 1930.", "husband"),
    ],
)
def test_uncertain_facts_about_people_are_skipped(opening: str, absent: str) -> None:
    assert absent not in facts("Ida Moss", f"Ida Moss {opening}")


def test_occupations_come_from_the_opening_list() -> None:
    told = "Ida Moss (born 1900) was an American film director, producer and screenwriter who met a painter."
    assert subject_of("Ida Moss", told).occupations == ("director", "producer", "screenwriter")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("is a 1970 British crime film directed by Ann Poe and starring Tom Reed.", {"director": "Ann Poe"}),
        ("is a 1970 British crime film directed by Ann Poe and starring Tom Reed.", {"released": "1970"}),
        (
            "is a 1970 film starring Tom Reed. It was written, produced and directed by Ann Poe.",
            {"director": "Ann Poe"},
        ),
        ("is a song by American rapper Ann Poe.", {"performer": "Ann Poe"}),
        ('is a song by Ann Poe from her debut album "Tides".', {"album": "Tides"}),
        ("is a novel by the British author Ann Poe, published in 1970.", {"author": "Ann Poe", "released": "1970"}),
        ("is an album by Ann Poe, released on 4 May 1970 by Island Records.", {"released": "4 May 1970"}),
    ],
)
def test_facts_about_works(told: str, expected: dict[str, str]) -> None:
    found = facts("Low Tide", f"Low Tide {told}")
    assert expected.items() <= found.items(), found


@pytest.mark.parametrize(
    ("told", "absent"),
    [
        ("is a 1970 film based on a play directed by Ann Poe.", "director"),
        ("is a 1970 film directed by Ann Poe and Ben Roe.", "director"),
        ("is a song by Hong Kong duo Twins.", "performer"),
    ],
)
def test_makers_of_other_works_and_one_of_several_makers_are_skipped(told: str, absent: str) -> None:
    assert absent not in facts("Low Tide", f"Low Tide {told}")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            "is a village in Kent, England. Its population was 1,204.",
            {"located in": "Kent, England", "population": "1,204"},
        ),
        ("is a village in Kent, England.", {"country": "England"}),
        ("are an English rock band from Leeds, formed in 1974.", {"nationality": "English", "founded": "1974"}),
        ("are an English rock band from Leeds, formed in 1974.", {"based in": "Leeds"}),
        ("is a company founded in 1950 by Carl Roe.", {"founder": "Carl Roe", "founded": "1950"}),
    ],
)
def test_facts_about_places_and_groups(told: str, expected: dict[str, str]) -> None:
    found = facts("Low Tide", f"Low Tide {told}")
    assert expected.items() <= found.items(), found


def test_population_of_another_place_is_skipped() -> None:
    told = "Low Tide is a state in the United States. Dover is its capital, with a population of 601,222."
    assert Relation.POPULATION.value not in facts("Low Tide", told)
