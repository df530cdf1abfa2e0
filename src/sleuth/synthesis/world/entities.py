"""Entities of a world: names, facts and passages, each a pure function of the seed and the entity id."""

from itertools import permutations

from sleuth.synthesis.world.names import Names
from sleuth.synthesis.world.permutation import (
    ManyToOne,
    NextBlock,
    OneOfSharers,
    Pairing,
    RelationMap,
    mix64,
    stable_hash,
)
from sleuth.synthesis.world.schema import BY_DOMAIN, RELATIONS, SPLITS, IdRanges, Kind, Relation, Split

FIRST_YEAR, YEARS = 1800, 200
# Distribution of the number of facts per passage; one entry is drawn per entity.
_LENGTHS = (1, 2, 3, 3, 4, 4, 4, 4, 4, 4)
_ORDERS: dict[Kind, tuple[list[tuple[Relation, ...]], ...]] = {
    kind: tuple(list(permutations(relations, min(length, len(relations)))) for length in _LENGTHS)
    for kind, relations in BY_DOMAIN.items()
}
_PRONOUNS = {True: ("She", "she", "her"), False: ("He", "he", "him"), None: ("It", "it", "it")}


class Entities:
    """Names, facts and passages of all entities of a world."""

    def __init__(self, passages: int, seed: int) -> None:
        self.ids = IdRanges(passages)
        self._seed = seed
        self._names = Names(passages, seed, self.ids)
        self._maps = {
            (relation.key, split): self._map(relation, split)
            for relation in RELATIONS.values()
            if relation.range
            for split in SPLITS
        }
        self._years = {relation.key: stable_hash(seed, relation.key) for relation in RELATIONS.values()}
        self._subset = stable_hash(seed, "stated")
        self._phrasing = stable_hash(seed, "phrasing")

    def name(self, entity: int) -> str:
        return self._names.name(entity)

    def stated(self, entity: int) -> tuple[Relation, ...]:
        """Return the relations stated in the entity's passage, in sentence order."""
        draw = mix64(self._subset + entity)
        orders = _ORDERS[self.ids.of(entity).kind][draw % len(_LENGTHS)]
        return orders[(draw >> 16) % len(orders)]

    def value(self, entity: int, relation: Relation) -> int:
        """Return the value of a fact: an entity id, or a year for relations without a range."""
        if relation.range is None:
            return FIRST_YEAR + mix64(self._years[relation.key] + entity) % YEARS
        subjects = self.ids.of(entity)
        offset = self._maps[relation.key, subjects.split].value(entity - subjects.start)
        return self.ids.get(relation.range, subjects.split).start + offset

    def value_text(self, entity: int, relation: Relation) -> str:
        """Return the value of a fact as written in passages and answers."""
        value = self.value(entity, relation)
        return str(value) if relation.range is None else self.name(value)

    def sibling(self, entity: int, relation: Relation, draw: int) -> int:
        """Return another entity with the same value of a shared relation."""
        subjects = self.ids.of(entity)
        found = self._maps.get((relation.key, subjects.split))
        if relation.sharing < 2 or not isinstance(found, ManyToOne | NextBlock):
            raise ValueError(f"relation {relation.key!r} has no shared values")
        return subjects.start + found.blocks.sibling(entity - subjects.start, draw)

    def passage(self, entity: int) -> str:
        """Return a title line and one sentence per stated fact; sentences alternate between the name and a pronoun."""
        name = self.name(entity)
        is_person = self.ids.of(entity).kind is Kind.PERSON
        subjects = ((name, name, name), _PRONOUNS[self._names.is_feminine(entity) if is_person else None])
        draw = mix64(self._phrasing + entity)
        sentences = []
        for index, relation in enumerate(self.stated(entity)):
            draw, choice = divmod(draw, len(relation.sentences))
            capitalized, lower, as_object = subjects[index % 2]
            value = self.value_text(entity, relation)
            sentences.append(relation.sentences[choice].format(S=capitalized, s=lower, O=as_object, V=value))
        return f'"{name}"\n' + " ".join(sentences)

    def _map(self, relation: Relation, split: Split) -> RelationMap:
        seed = stable_hash(self._seed, relation.key, split)
        subjects = self.ids.get(relation.domain, split).size
        match relation.key:
            case "spouse":
                return Pairing(subjects, seed)
            case "mentor":
                return NextBlock(subjects, relation.sharing, seed)
            case "capital":
                return OneOfSharers(self._many_to_one(RELATIONS["country"], split), seed)
            case _:
                return self._many_to_one(relation, split)

    def _many_to_one(self, relation: Relation, split: Split) -> ManyToOne:
        if relation.range is None:
            raise ValueError(f"relation {relation.key!r} has years as values, not entities")
        subjects, values = self.ids.get(relation.domain, split), self.ids.get(relation.range, split)
        return ManyToOne(subjects.size, values.size, relation.sharing, stable_hash(self._seed, relation.key, split))
