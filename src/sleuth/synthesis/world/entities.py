"""Everything about an entity, as a pure function of the seed and its number."""

from itertools import permutations

from sleuth.synthesis.world.census import SPLITS, Census, Kind, Split
from sleuth.synthesis.world.facts import Couples, Fact, Representative, Shared, Succession
from sleuth.synthesis.world.names import Names
from sleuth.synthesis.world.permutation import key, mix
from sleuth.synthesis.world.relations import BY_DOMAIN, RELATIONS, Relation

FIRST_YEAR, YEARS = 1800, 200

# One entry is drawn for an entity: how many facts its passage states, if its kind has so many.
_LENGTHS = (1, 2, 3, 3, 4, 4, 4, 4, 4, 4)


def _orders(kind: Kind, length: int) -> list[tuple[Relation, ...]]:
    relations = BY_DOMAIN[kind]
    return list(permutations(relations, min(length, len(relations))))


_STATED: dict[Kind, tuple[list[tuple[Relation, ...]], ...]] = {
    kind: tuple(_orders(kind, length) for length in _LENGTHS) for kind in Kind
}


class Entities:
    """The entities of a world: names, facts, and which facts their passages state."""

    def __init__(self, passages: int, seed: int) -> None:
        self.census = Census(passages)
        self._seed = seed
        self._names = Names(passages, seed, self.census)
        self._facts = {(relation.key, split): self._fact(relation, split) for relation, split in self._entity_valued()}
        self._years = {relation.key: key(seed, relation.key) for relation in RELATIONS.values()}
        self._subset = key(seed, "stated")

    def kind(self, entity: int) -> Kind:
        return self.census.of(entity).kind

    def name(self, entity: int) -> str:
        return self._names.name(entity)

    def feminine(self, person: int) -> bool:
        return self._names.feminine(person)

    def stated(self, entity: int) -> tuple[Relation, ...]:
        """The relations that the entity's passage states, in the order of its sentences."""
        draw = mix(self._subset + entity)
        orders = _STATED[self.kind(entity)][draw % len(_LENGTHS)]
        return orders[(draw >> 16) % len(orders)]

    def states(self, entity: int, relation: Relation) -> bool:
        return relation in self.stated(entity)

    def value(self, entity: int, relation: Relation) -> int:
        """The number of the entity that is the fact's value; a year where the relation's range is None."""
        if relation.range is None:
            return FIRST_YEAR + mix(self._years[relation.key] + entity) % YEARS
        half = self.census.of(entity)
        place = self._facts[relation.key, half.split].value(entity - half.start)
        return self.census.half(relation.range, half.split).start + place

    def text(self, entity: int, relation: Relation) -> str:
        """The value as it stands in passages and answers."""
        value = self.value(entity, relation)
        return str(value) if relation.range is None else self.name(value)

    def sibling(self, entity: int, relation: Relation, draw: int) -> int:
        """Another entity with the same value of a relation that is shared."""
        half = self.census.of(entity)
        fact = self._facts[relation.key, half.split]
        if relation.sharing < 2 or not isinstance(fact, Shared | Succession):
            raise ValueError(f"no two subjects share the value of {relation.key!r}")
        return half.start + fact.blocks.sibling(entity - half.start, draw)

    @staticmethod
    def _entity_valued() -> list[tuple[Relation, Split]]:
        return [(relation, split) for relation in RELATIONS.values() if relation.range for split in SPLITS]

    def _fact(self, relation: Relation, split: Split) -> Fact:
        seed = key(self._seed, relation.key, split)
        match relation.key:
            case "spouse":
                return Couples(self.census.half(relation.domain, split).size, seed)
            case "mentor":
                return Succession(self.census.half(relation.domain, split).size, relation.sharing, seed)
            case "capital":
                return Representative(self._shared(RELATIONS["country"], split), seed)
            case _:
                return self._shared(relation, split)

    def _shared(self, relation: Relation, split: Split) -> Shared:
        if relation.range is None:
            raise ValueError(f"{relation.key!r} has years for values, which no map of entities gives")
        subjects, values = self.census.half(relation.domain, split), self.census.half(relation.range, split)
        return Shared(subjects.size, values.size, relation.sharing, key(self._seed, relation.key, split))
