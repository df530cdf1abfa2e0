"""Names of two words: a word of the kind's first list, a word of its last list, each pair at most once."""

from functools import cache
from math import isqrt

from sleuth.synthesis.world.census import Census, Kind, counts
from sleuth.synthesis.world.lexicon import FIRST, LAST
from sleuth.synthesis.world.permutation import Permutation, key

_CONSONANTS = "bdfghjklmnprtvz"
_SYLLABLES = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in "aeiou")
_STRIDE = 2741  # coprime to the 75 * 75 pairs of syllables: neighbours in a list look unlike

# Four endings a list, each of one list only: with two syllables before it, a word belongs to one list and comes once.
_FIRST_ENDINGS: dict[Kind, tuple[str, ...]] = {
    Kind.PERSON: ("lla", "mir", "nna", "rik"),
    Kind.CITY: ("burg", "stad", "grad", "holm"),
    Kind.COUNTRY: ("land", "stan", "thia", "ndor"),
    Kind.WORK: ("lorn", "gold", "dusk", "mist"),
    Kind.ORGANISATION: ("corp", "tron", "plex", "dyn"),
}
_LAST_ENDINGS: dict[Kind, tuple[str, ...]] = {
    Kind.PERSON: ("wick", "vitch", "mont", "sson"),
    Kind.CITY: ("rock", "firth", "wood", "crag"),
    Kind.COUNTRY: ("mark", "gard", "shir", "gau"),
    Kind.WORK: ("song", "saga", "poem", "myth"),
    Kind.ORGANISATION: ("werk", "bund", "hub", "fund"),
}


def _made(place: int, endings: tuple[str, ...]) -> str:
    """The word at `place` after the hand-picked ones; distinct places give distinct words (5625 and 4 are coprime)."""
    front, back = divmod(place * _STRIDE % len(_SYLLABLES) ** 2, len(_SYLLABLES))
    return (_SYLLABLES[front] + _SYLLABLES[back] + endings[place % len(endings)]).capitalize()


@cache
def first_words(kind: Kind, length: int) -> tuple[str, ...]:
    """The first `length` first words of a kind; a longer list begins with the shorter one."""
    return _extended(FIRST[kind].split(), _FIRST_ENDINGS[kind], length)


@cache
def last_words(kind: Kind, length: int) -> tuple[str, ...]:
    """The first `length` last words of a kind; a longer list begins with the shorter one."""
    return _extended(LAST[kind].split(), _LAST_ENDINGS[kind], length)


def _extended(picked: list[str], endings: tuple[str, ...], length: int) -> tuple[str, ...]:
    return (*picked[:length], *(_made(place, endings) for place in range(length - len(picked))))


def list_length(count: int) -> int:
    """Words a list needs so that about half of all pairs are names: distractors abound, absent pairs too."""
    return isqrt(2 * count - 1) + 1


def words(passages: int) -> list[str]:
    """Every name word that a world of that size can use, whatever its seed."""
    return [
        word
        for kind, count in counts(passages).items()
        for side in (first_words, last_words)
        for word in side(kind, list_length(count))
    ]


class Names:
    """The name of every entity of a world; each word of a list is in as many names as any other, give or take a few."""

    def __init__(self, passages: int, seed: int, census: Census) -> None:
        self._census = census
        self._lists: dict[Kind, tuple[list[str], list[str]]] = {}
        self._orders: dict[Kind, Permutation] = {}
        for kind, count in counts(passages).items():
            length = list_length(count)
            firsts = _shuffled(first_words(kind, length), key(seed, "first", kind))
            lasts = _shuffled(last_words(kind, length), key(seed, "last", kind))
            self._lists[kind] = firsts, lasts
            self._orders[kind] = Permutation(count, key(seed, "name", kind))
        self._feminine = frozenset(first_words(Kind.PERSON, list_length(counts(passages)[Kind.PERSON]))[::2])

    def name(self, entity: int) -> str:
        return " ".join(self._pair(entity))

    def feminine(self, person: int) -> bool:
        """Given names alternate, feminine first."""
        return self._pair(person)[0] in self._feminine

    def _pair(self, entity: int) -> tuple[str, str]:
        """Walks the square of all pairs by diagonals, so that both words change and no pair comes twice."""
        kind = self._census.of(entity).kind
        firsts, lasts = self._lists[kind]
        diagonal, first = divmod(self._orders[kind](entity - self._census.kind_start[kind]), len(firsts))
        return firsts[first], lasts[(first + diagonal) % len(lasts)]


def _shuffled(listed: tuple[str, ...], seed: int) -> list[str]:
    order = Permutation(len(listed), seed)
    return [listed[order(place)] for place in range(len(listed))]


ALIASES: dict[Kind, str] = {
    Kind.PERSON: "{last}, {first}",
    Kind.CITY: "the city of {first} {last}",
    Kind.COUNTRY: "the country of {first} {last}",
    Kind.WORK: "the book {first} {last}",
    Kind.ORGANISATION: "the organisation {first} {last}",
}


def answers(kind: Kind, name: str) -> tuple[str, ...]:
    """The name and its other plain form."""
    first, last = name.split()
    return name, ALIASES[kind].format(first=first, last=last)
