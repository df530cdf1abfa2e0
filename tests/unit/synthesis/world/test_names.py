import re

import Stemmer

from sleuth.synthesis.world.names import ALIASES, Names, first_words, last_words, name_words
from sleuth.synthesis.world.schema import MAX_PASSAGES, RELATIONS, IdRanges, Kind, entity_counts

STEMMER = Stemmer.Stemmer("english")
FRAME = "Who What is the of and or earlier later She she her He he him It it its yes no"


def stems(text: str) -> set[str]:
    return set(STEMMER.stemWords(re.findall(r"\w+", text.lower())))


def template_text() -> str:
    """All words of passages, questions and aliases except names and years."""
    parts = [FRAME, *ALIASES.values()]
    for relation in RELATIONS.values():
        parts += [*relation.nouns, *relation.sentences, relation.natural, relation.same or "", relation.compare or ""]
    return re.sub(r"\{\w+\}", " ", " ".join(parts))


def test_name_words_have_unique_stems_absent_from_templates() -> None:
    largest = name_words(MAX_PASSAGES)
    found = STEMMER.stemWords([word.lower() for word in largest])
    assert len(set(found)) == len(largest)
    assert not set(found) & stems(template_text())


def test_longer_word_list_starts_with_the_shorter_one() -> None:
    for kind in Kind:
        for side in (first_words, last_words):
            assert side(kind, 1000)[:30] == side(kind, 30)
            assert side(kind, 1000)[:300] == side(kind, 300)


def test_words_of_a_small_world_are_a_subset_of_a_larger_one() -> None:
    assert len(name_words(2000)) <= 350
    assert set(name_words(100)) < set(name_words(2000)) < set(name_words(50_000)) < set(name_words(MAX_PASSAGES))
    assert all(re.fullmatch("[A-Z][a-z]+", word) for word in name_words(MAX_PASSAGES))


def test_names_are_unique_word_pairs() -> None:
    known = set(name_words(5000))
    for seed in (0, 1):
        names = Names(5000, seed, IdRanges(5000))
        every = [names.name(entity) for entity in range(5000)]
        assert len(set(every)) == 5000
        assert {word for name in every for word in name.split(" ")} == known
        assert all(name.count(" ") == 1 for name in every)


def test_words_are_used_equally_often() -> None:
    names = Names(2000, 3, IdRanges(2000))
    people = [names.name(entity).split() for entity in range(entity_counts(2000)[Kind.PERSON])]
    for position in (0, 1):
        shared = [name[position] for name in people]
        assert {shared.count(word) for word in set(shared)} <= {22, 23}
