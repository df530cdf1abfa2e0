import re

import Stemmer

from sleuth.synthesis.world.census import LARGEST, Census, Kind, counts
from sleuth.synthesis.world.names import ALIASES, Names, first_words, last_words, words
from sleuth.synthesis.world.relations import RELATIONS

STEMMER = Stemmer.Stemmer("english")
FRAME = "Who What is the of and or earlier later She she her He he him It it its yes no"


def stems(text: str) -> set[str]:
    return set(STEMMER.stemWords(re.findall(r"\w+", text.lower())))


def language() -> str:
    """Every word that passages, questions and aliases are made of, names and years aside."""
    parts = [FRAME, *ALIASES.values()]
    for relation in RELATIONS.values():
        parts += [*relation.nouns, *relation.sentences, relation.natural, relation.same or "", relation.compare or ""]
    return re.sub(r"\{\w+\}", " ", " ".join(parts))


def test_no_two_name_words_share_a_stem_and_none_is_a_word_of_the_language() -> None:
    largest = words(LARGEST)
    found = STEMMER.stemWords([word.lower() for word in largest])
    assert len(set(found)) == len(largest)
    assert not set(found) & stems(language())


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    for kind in Kind:
        for side in (first_words, last_words):
            assert side(kind, 1000)[:30] == side(kind, 30)
            assert side(kind, 1000)[:300] == side(kind, 300)


def test_the_words_of_a_small_world_are_few_and_those_of_a_larger_world_include_them() -> None:
    assert len(words(2000)) <= 350
    assert set(words(100)) < set(words(2000)) < set(words(50_000)) < set(words(LARGEST))
    assert all(re.fullmatch("[A-Z][a-z]+", word) for word in words(LARGEST))


def test_names_are_two_words_of_the_world_and_never_twice() -> None:
    known = set(words(5000))
    for seed in (0, 1):
        names = Names(5000, seed, Census(5000))
        every = [names.name(entity) for entity in range(5000)]
        assert len(set(every)) == 5000
        assert {word for name in every for word in name.split(" ")} == known
        assert all(name.count(" ") == 1 for name in every)


def test_every_word_is_in_about_as_many_names_as_any_other() -> None:
    names = Names(2000, 3, Census(2000))
    people = [names.name(entity).split() for entity in range(counts(2000)[Kind.PERSON])]
    for position in (0, 1):
        shared = [name[position] for name in people]
        assert {shared.count(word) for word in set(shared)} <= {22, 23}
