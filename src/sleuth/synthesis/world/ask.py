"""Questions about one half of a world, drawn by number, each with its gold path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sleuth.synthesis.world.census import Kind, Split
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.names import answers
from sleuth.synthesis.world.permutation import mix
from sleuth.synthesis.world.relations import RELATIONS, Relation


@dataclass(frozen=True, slots=True)
class Hop:
    """One fact of a gold path; `noun` is as the question has it, or else the relation's first noun."""

    subject: str
    relation: str
    noun: str
    value: str
    passage_id: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A question in words, with the answers that are right and the path to them."""

    text: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


class Draw:
    """A stream of numbers below a bound, from one seed."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = mix(self._state)
        return self._state % bound


_COMPARED = tuple(relation for relation in RELATIONS.values() if relation.compare)
_SAME = tuple(relation for relation in RELATIONS.values() if relation.same)


def _pick(relations: Sequence[Relation], draw: Draw) -> Relation:
    return relations[draw.below(len(relations))]


def _nested(hops: Sequence[Hop]) -> str:
    """What is the last noun of the one before it ... of the first subject?"""
    word = "Who" if RELATIONS[hops[-1].relation].range is Kind.PERSON else "What"
    return f"{word} is {' of '.join(f'the {hop.noun}' for hop in reversed(hops))} of {hops[0].subject}?"


class Asker:
    """Drafts questions about the entities of one split; a draft that does not work out is None."""

    def __init__(self, entities: Entities, split: Split, passage_id: Callable[[int], str]) -> None:
        self._entities = entities
        self._passage_id = passage_id
        self._halves = [entities.census.half(kind, split) for kind in Kind]
        self._subjects = {half.kind: half for half in self._halves}
        self._size = sum(half.size for half in self._halves)

    def one_hop(self, draw: Draw, _turn: int) -> Draft | None:
        """A stated fact, asked with one of its nouns or in natural words."""
        subject = self._anyone(draw)
        relation = _pick(self._entities.stated(subject), draw)
        natural, noun = draw.below(2), relation.nouns[draw.below(2)]
        hop = self._hop(subject, relation, relation.nouns[0] if natural else noun)
        text = relation.natural.format(X=hop.subject) if natural else _nested([hop])
        return Draft(text, self._answers(subject, relation), (hop,))

    def two_hop(self, draw: Draw, _turn: int) -> Draft | None:
        return self._chain(draw, 2)

    def three_hop(self, draw: Draw, _turn: int) -> Draft | None:
        return self._chain(draw, 3)

    def comparison(self, draw: Draw, turn: int) -> Draft | None:
        """Which of two has the earlier or later year; the right one stands first and second by turns."""
        relation = _pick(_COMPARED, draw)
        pair = self._pair(relation, draw)
        if pair is None:
            return None
        years = {entity: self._entities.value(entity, relation) for entity in pair}
        earlier, later = sorted(pair, key=years.__getitem__)
        if years[earlier] == years[later]:
            return None
        order, right, wrong = [("earlier", earlier, later), ("later", later, earlier)][draw.below(2)]
        placed = (right, wrong) if turn % 2 == 0 else (wrong, right)
        hops = tuple(self._hop(entity, relation, relation.nouns[0]) for entity in placed)
        text = str(relation.compare).format(order=order, A=hops[0].subject, B=hops[1].subject)
        return Draft(text, answers(relation.domain, self._entities.name(right)), hops)

    def yes_no(self, draw: Draw, turn: int) -> Draft | None:
        """Whether two have the same value; yes and no by turns."""
        relation = _pick(_SAME, draw)
        pair = self._siblings(relation, draw) if turn % 2 == 0 else self._pair(relation, draw)
        if pair is None:
            return None
        same = self._entities.value(pair[0], relation) == self._entities.value(pair[1], relation)
        if same != (turn % 2 == 0):
            return None
        hops = tuple(self._hop(entity, relation, relation.nouns[0]) for entity in pair)
        text = str(relation.same).format(A=hops[0].subject, B=hops[1].subject)
        return Draft(text, ("yes" if same else "no",), hops)

    def _chain(self, draw: Draw, length: int) -> Draft | None:
        """Follows stated facts from entity to entity, none of them twice; the last value may be a year."""
        subject = self._anyone(draw)
        seen = [subject]
        hops: list[Hop] = []
        while True:
            last = len(hops) == length - 1
            choices = [relation for relation in self._entities.stated(subject) if last or relation.range]
            if not choices:
                return None
            relation = _pick(choices, draw)
            hops.append(self._hop(subject, relation, relation.nouns[draw.below(2)]))
            value = self._entities.value(subject, relation)
            if relation.range and value in seen:
                return None
            if last:
                return Draft(_nested(hops), self._answers(subject, relation), tuple(hops))
            seen.append(value)
            subject = value

    def _anyone(self, draw: Draw) -> int:
        """Any entity of the split, each as likely as every other."""
        place = draw.below(self._size)
        for half in self._halves:
            if place < half.size:
                return half.start + place
            place -= half.size
        raise AssertionError("a place below the size of all halves lies in one of them")

    def _pair(self, relation: Relation, draw: Draw) -> tuple[int, int] | None:
        half = self._subjects[relation.domain]
        one, other = (half.start + draw.below(half.size) for _ in range(2))
        return self._telling(one, other, relation)

    def _siblings(self, relation: Relation, draw: Draw) -> tuple[int, int] | None:
        half = self._subjects[relation.domain]
        one = half.start + draw.below(half.size)
        return self._telling(one, self._entities.sibling(one, relation, draw.below(1 << 32)), relation)

    def _telling(self, one: int, other: int, relation: Relation) -> tuple[int, int] | None:
        """The pair, if they are two and the passages of both state the fact."""
        told = self._entities.states(one, relation) and self._entities.states(other, relation)
        return (one, other) if one != other and told else None

    def _hop(self, subject: int, relation: Relation, noun: str) -> Hop:
        name, value = self._entities.name(subject), self._entities.text(subject, relation)
        return Hop(name, relation.key, noun, value, self._passage_id(subject))

    def _answers(self, subject: int, relation: Relation) -> tuple[str, ...]:
        value = self._entities.text(subject, relation)
        return (value,) if relation.range is None else answers(relation.range, value)


FORMS: dict[str, Callable[[Asker, Draw, int], Draft | None]] = {
    "one_hop": Asker.one_hop,
    "two_hop": Asker.two_hop,
    "three_hop": Asker.three_hop,
    "comparison": Asker.comparison,
    "yes_no": Asker.yes_no,
}
