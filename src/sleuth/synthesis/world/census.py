"""How many entities of each kind a world has, and which half each belongs to."""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sleuth.errors import InputError

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
SMALLEST, LARGEST = 100, 1_000_000


class Kind(StrEnum):
    PERSON = "person"
    CITY = "city"
    COUNTRY = "country"
    WORK = "work"
    ORGANISATION = "organisation"


@dataclass(frozen=True, slots=True)
class Half:
    """The entities of one kind in one split: the numbers start .. start + size - 1."""

    kind: Kind
    split: Split
    start: int
    size: int


def counts(passages: int) -> dict[Kind, int]:
    """Entities of each kind; they add up to the passages."""
    if not SMALLEST <= passages <= LARGEST:
        raise InputError(f"a world of {passages} passages cannot be made; give a number from {SMALLEST} to {LARGEST}")
    people = passages // 16 * 8  # a multiple of eight, so that both halves can marry off completely
    countries, rest = max(4, passages // 50), passages * 15 // 100
    cities = passages - people - countries - 2 * rest
    return {Kind.PERSON: people, Kind.CITY: cities, Kind.COUNTRY: countries, Kind.WORK: rest, Kind.ORGANISATION: rest}


class Census:
    """Numbers every entity of a world, kind by kind, the trained-on half of a kind before its held-out half."""

    def __init__(self, passages: int) -> None:
        self.halves: list[Half] = []
        self.kind_start: dict[Kind, int] = {}
        start = 0
        for kind, count in counts(passages).items():
            self.kind_start[kind] = start
            held_out = max(2, count // 4)
            self.halves.append(Half(kind, "train", start, count - held_out))
            self.halves.append(Half(kind, "test", start + count - held_out, held_out))
            start += count
        self._starts = [half.start for half in self.halves]
        self._by_name = {(half.kind, half.split): half for half in self.halves}

    def of(self, entity: int) -> Half:
        """The half an entity belongs to."""
        return self.halves[bisect_right(self._starts, entity) - 1]

    def half(self, kind: Kind, split: Split) -> Half:
        return self._by_name[kind, split]
