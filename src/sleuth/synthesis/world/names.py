"""Two-word names, each pair of words used at most once.

Hand-picked words come first, followed by generated words. All lists are disjoint from each other, from the passages'
prose and from the questions. Given names alternate: feminine at even positions, masculine at odd ones.
"""

from functools import cache
from math import isqrt

from sleuth.synthesis.world.permutation import Permutation, stable_hash
from sleuth.synthesis.world.schema import IdRanges, Kind, entity_counts

FIRST: dict[Kind, str] = {
    Kind.PERSON: """
        Mira Tobin Selka Orrin Ysolde Darrow Talia Bram Nerys Corwin Odessa Fenwick Liora Jarek Vesna Aldric
        Petra Gideon Saskia Emeric Zelda Lucan Ingrid Rafe Thessaly Magnus Corinna Silvan Brielle Osric Delphine Kellan
        Amara Leopold Junia Percival Rowena Tristan Xanthe Ulric Freya Hadrian Maren Callum Opal Dorian Bettina Wendel
        """,
    Kind.CITY: """
        Aldmoor Brindle Carrow Dunvar Eskdal Farrow Glimmer Hestor Ivarn Jorven Kelder Lunden Merrow Nordal
        Ostrav Pellam Quarrin Rosmar Selwyn Tarnow Ulver Varden Westrin Yarrow Zellin Ambry Belmar Caldor Drovik Elmsk
        Fennor Gravik Halden Isfar Kirnov Lorrin Mistral Norvik Oxmer Pryde
        """,
    Kind.COUNTRY: """
        Velmaria Tolvia Ashkar Bruneth Cordava Drelland Esteria Faronia Gorvania Hestia Ilmaria Jovania Kestria
        Lurania Morvane Nyrland Orsinia Pelagia Quenland Ruvania Sarvia Tarkesh Undoria Vostria Wyrland Xandria Yskar
        Zorvia Albara Bostria Celdonia Dravia Elvandia Frisland Galdovia Hyrkania Iskaria Karelda Lothria Meridia
        """,
    Kind.WORK: """
        Silent Crimson Gilded Broken Velvet Scarlet Distant Frozen Burning Ivory Amber Forgotten Wandering Hidden
        Lonely Restless Golden Pale Endless Secret Quiet Bitter Painted Sunken Hollow Copper Emerald Fallen Gentle
        Haunted Iron Jagged Luminous Midnight Narrow Obsidian Patient Rusted Stolen Twilight
        """,
    Kind.ORGANISATION: """
        Harrow Kestrel Meridian Aurora Blackwood Cobalt Everard Falcon Granite Helix Juniper Lantern Mercury
        Northgate Orion Paragon Quantum Redstone Sterling Trident Umbra Vanguard Wexford Zephyr Anchor Beacon Cascade
        Dynamo Eclipse Fulcrum Gryphon Horizon Ironwood Jupiter Keystone Longbow Monarch Nimbus Oakhurst Pinnacle
        """,
}

LAST: dict[Kind, str] = {
    Kind.PERSON: """
        Aldane Thornbury Vance Castellan Hartwell Marchetti Okafor Lindqvist Petrov Ashdown Bellweather Corrigan
        Delacroix Ellsworth Fairbanks Galloway Hawthorne Ivanov Jessamy Kowalski Lockhart Montague Nakamura Oyelaran
        Pemberton Quillon Rasmussen Sorensen Tremaine Underhill Valverde Whitlock Yamada Zielinski Abernathy Blackthorn
        Carmody Dunmore Eastwick Fitzroy Greville Holloway Ingleby Jankowski Kensley Lovelace Mirzoyan Novak
        """,
    Kind.CITY: """
        Haven Crossing Bay Falls Heights Ford Point Ridge Grove Wells Springs Landing Quay Vale Moor Glen Cove Hill
        Bridge Port Cliff Meadow Gate Mount Brook Shore Marsh Abbey Green Dale Fork Pass Strand Terrace Lock Dell
        Creek Pines Rapids Summit
        """,
    Kind.COUNTRY: """
        Republic Union Kingdom Federation Isles Empire Commonwealth Principality Duchy Dominion Territory Province
        Realm League Emirate Sultanate Khanate Protectorate Cantons Lowlands Highlands Coast Archipelago Peninsula
        Plateau Marches Steppe Delta Atoll Basin Tundra Savanna Frontier Shogunate Barony Earldom Margravate
        Palatinate Caliphate Tetrarchy
        """,
    Kind.WORK: """
        Harbour Orchard Mirror Lighthouse Garden Winter River Staircase Voyage Compass Letter Mountain Window Clock
        Feather Shadow Serpent Tower Island Melody Carnival Forest Candle Labyrinth Violin Desert Ocean Puzzle Raven
        Sailor Tapestry Umbrella Valley Willow Journey Bell Crown Dancer Ember Fountain
        """,
    Kind.ORGANISATION: """
        Institute Foundry Guild Academy Trust Society Bureau Syndicate Collective Laboratory Observatory Conservatory
        Press Museum Library College Alliance Council Consortium Workshop Theatre Orchestra Archive Hospital Bank
        Brewery Shipyard Railway Exchange Mill Forum Chapel Ministry Company Corporation Club Fellowship Agency
        Studio Cooperative
        """,
}

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprtvz" for vowel in "aeiou")
_STRIDE = 2741  # coprime to the 75 * 75 syllable pairs, so that neighbouring generated words look different

# Endings are unique to their list, so a generated word belongs to one list only.
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
ALIASES: dict[Kind, str] = {
    Kind.PERSON: "{last}, {first}",
    Kind.CITY: "the city of {first} {last}",
    Kind.COUNTRY: "the country of {first} {last}",
    Kind.WORK: "the book {first} {last}",
    Kind.ORGANISATION: "the organisation {first} {last}",
}


@cache
def first_words(kind: Kind, length: int) -> tuple[str, ...]:
    """Return the first words of names for an entity kind; a shorter list is a prefix of a longer one."""
    return _extend(FIRST[kind].split(), _FIRST_ENDINGS[kind], length)


@cache
def last_words(kind: Kind, length: int) -> tuple[str, ...]:
    """Return the last words of names for an entity kind; a shorter list is a prefix of a longer one."""
    return _extend(LAST[kind].split(), _LAST_ENDINGS[kind], length)


def _extend(words: list[str], endings: tuple[str, ...], length: int) -> tuple[str, ...]:
    """Truncate or extend hand-picked words with generated ones, all distinct because 5625 and 4 are coprime."""
    generated = []
    for index in range(length - len(words)):
        front, back = divmod(index * _STRIDE % len(_SYLLABLES) ** 2, len(_SYLLABLES))
        generated.append((_SYLLABLES[front] + _SYLLABLES[back] + endings[index % len(endings)]).capitalize())
    return (*words[:length], *generated)


def list_length(count: int) -> int:
    """Return the words per list for `count` names: about half of all pairs are names, the rest stay unused."""
    return isqrt(2 * count - 1) + 1


def name_words(passages: int) -> list[str]:
    """Return every word that can occur in the names of a world of this size, for any seed."""
    return [
        word
        for kind, count in entity_counts(passages).items()
        for words in (first_words, last_words)
        for word in words(kind, list_length(count))
    ]


def name_variants(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the accepted answers for a name: the name and its alias."""
    first, last = name.split()
    return name, ALIASES[kind].format(first=first, last=last)


class Names:
    """The name of every entity of a world; the words of a list are used about equally often."""

    def __init__(self, passages: int, seed: int, ids: IdRanges) -> None:
        self._ids = ids
        self._lists: dict[Kind, tuple[list[str], list[str]]] = {}
        self._orders: dict[Kind, Permutation] = {}
        for kind, count in entity_counts(passages).items():
            length = list_length(count)
            firsts = _shuffle(first_words(kind, length), stable_hash(seed, "first", kind))
            lasts = _shuffle(last_words(kind, length), stable_hash(seed, "last", kind))
            self._lists[kind] = firsts, lasts
            self._orders[kind] = Permutation(count, stable_hash(seed, "name", kind))
        self._feminine = frozenset(first_words(Kind.PERSON, list_length(entity_counts(passages)[Kind.PERSON]))[::2])

    def name(self, entity: int) -> str:
        return " ".join(self._words(entity))

    def is_feminine(self, person: int) -> bool:
        return self._words(person)[0] in self._feminine

    def _words(self, entity: int) -> tuple[str, str]:
        """Select a word pair along the diagonals of the square of all pairs: both words change, and no pair repeats."""
        kind = self._ids.of(entity).kind
        firsts, lasts = self._lists[kind]
        diagonal, first = divmod(self._orders[kind](entity - self._ids.kind_start[kind]), len(firsts))
        return firsts[first], lasts[(first + diagonal) % len(lasts)]


def _shuffle(words: tuple[str, ...], seed: int) -> list[str]:
    order = Permutation(len(words), seed)
    return [words[order(index)] for index in range(len(words))]
