"""The generated encyclopedia: passages and questions, determined by size and seed, and streamed in constant memory."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from sleuth import __version__
from sleuth.config.data import QuestionType
from sleuth.corpus import questions
from sleuth.corpus.questions import CORPUS, TEST, TRAIN
from sleuth.errors import ConfigError, InputError
from sleuth.records import Passage, Question
from sleuth.runs.atomic import atomic_write
from sleuth.runs.checksums import fingerprint
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.names import name_variants
from sleuth.synthesis.world.permutation import Permutation, mix64, stable_hash
from sleuth.synthesis.world.schema import RELATIONS, Kind, Relation, Split

MIXTURE: Mapping[QuestionType, float] = MappingProxyType(
    {"one_hop": 0.25, "two_hop": 0.30, "three_hop": 0.15, "comparison": 0.15, "yes_no": 0.15}
)
FORMAT = 1  # format version of the world folder
_MAX_ATTEMPTS = 2000  # failed or repeated drafts in a row before a question type counts as exhausted
_COMPARABLE = tuple(relation for relation in RELATIONS.values() if relation.compare)
_SHARED = tuple(relation for relation in RELATIONS.values() if relation.same)
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Hop:
    """One fact of a gold path; `noun` is the noun used for the relation in the question, or else its first noun."""

    subject: str
    relation: str
    noun: str
    value: str
    passage_id: str


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question with its gold path: a chain in order, or one hop per compared subject in question order."""

    question: Question
    hops: tuple[Hop, ...]


class World:
    """An encyclopedia of `passages` entities; the train and test splits share no entity and no fact."""

    def __init__(self, passages: int, seed: int) -> None:
        self.seed = seed
        self._size = passages
        self._entities = Entities(passages, seed)
        self._rows = Permutation(passages, stable_hash(seed, "row"))

    def __len__(self) -> int:
        return self._size

    def passage(self, row: int) -> Passage:
        """Return the passage at a corpus row."""
        if not 0 <= row < self._size:
            raise IndexError(f"row {row} is out of range for a world of {self._size} passages")
        return Passage(str(row), self._entities.passage(self._rows(row)))

    def passages(self) -> Iterator[Passage]:
        """Yield all passages in row order."""
        return map(self.passage, range(self._size))

    def questions(
        self, split: Split, count: int, seed: int = 0, mixture: Mapping[QuestionType, float] = MIXTURE
    ) -> Iterator[WorldQuestion]:
        """Generate `count` distinct questions about one split, with question types in the proportions of `mixture`."""
        writer = _QuestionWriter(self._entities, split, lambda entity: str(self._rows.inverse(entity)))
        draw = _Draw(stable_hash(self.seed, "questions", split, seed))
        turns: Counter[str] = Counter()
        texts: set[str] = set()
        for number, kind in zip(range(count), _question_types(mixture), strict=False):
            drafts = (_TYPES[kind](writer, draw, turns[kind]) for _ in range(_MAX_ATTEMPTS))
            draft = next((each for each in drafts if each is not None and each.text not in texts), None)
            if draft is None:
                raise InputError(
                    f"a world of {self._size} passages has only {number} distinct {split} questions before its {kind} "
                    f"questions run out, but {count} were requested; request fewer or generate a larger world"
                )
            turns[kind] += 1
            texts.add(draft.text)
            question = Question(
                id=f"{split}-{self.seed}-{seed}-{number}",
                question=draft.text,
                golden_answers=draft.answers,
                data_source="world",
                supporting_ids=tuple(hop.passage_id for hop in draft.hops),
                type=kind,
                hops=len(draft.hops),
            )
            yield WorldQuestion(question, draft.hops)


@dataclass(frozen=True, slots=True)
class _Draft:
    text: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]


class _Draw:
    """A stream of pseudo-random numbers from one seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = mix64(self._state)
        return self._state % bound


class _QuestionWriter:
    """Drafts questions about the entities of one split; methods return None if an attempt fails."""

    def __init__(self, entities: Entities, split: Split, passage_id: Callable[[int], str]) -> None:
        self._entities = entities
        self._passage_id = passage_id
        self._ranges = {kind: entities.ids.get(kind, split) for kind in Kind}
        self._size = sum(each.size for each in self._ranges.values())

    def one_hop(self, draw: _Draw, _turn: int) -> _Draft | None:
        """Ask for one stated fact, with a noun of the relation or its natural wording."""
        subject = self._random_entity(draw)
        relation = _pick(self._entities.stated(subject), draw)
        natural, noun = draw.below(2), relation.nouns[draw.below(2)]
        hop = self._hop(subject, relation, relation.nouns[0] if natural else noun)
        text = relation.natural.format(X=hop.subject) if natural else _nested([hop])
        return _Draft(text, self._answers(subject, relation), (hop,))

    def comparison(self, draw: _Draw, turn: int) -> _Draft | None:
        """Ask which of two subjects has the earlier or later year; the answer alternates between the two positions."""
        relation = _pick(_COMPARABLE, draw)
        pair = self._random_pair(relation, draw)
        if pair is None:
            return None
        years = {entity: self._entities.value(entity, relation) for entity in pair}
        earlier, later = sorted(pair, key=years.__getitem__)
        if years[earlier] == years[later]:
            return None
        order, right, wrong = [("earlier", earlier, later), ("later", later, earlier)][draw.below(2)]
        ordered = (right, wrong) if turn % 2 == 0 else (wrong, right)
        hops = tuple(self._hop(entity, relation, relation.nouns[0]) for entity in ordered)
        text = str(relation.compare).format(order=order, A=hops[0].subject, B=hops[1].subject)
        return _Draft(text, name_variants(relation.domain, self._entities.name(right)), hops)

    def yes_no(self, draw: _Draw, turn: int) -> _Draft | None:
        """Ask whether two subjects have the same value; yes and no alternate."""
        relation, expected = _pick(_SHARED, draw), turn % 2 == 0
        pair = self._random_pair(relation, draw, siblings=expected)
        if pair is None:
            return None
        if (self._entities.value(pair[0], relation) == self._entities.value(pair[1], relation)) != expected:
            return None
        hops = tuple(self._hop(entity, relation, relation.nouns[0]) for entity in pair)
        text = str(relation.same).format(A=hops[0].subject, B=hops[1].subject)
        return _Draft(text, ("yes" if expected else "no",), hops)

    def chain(self, draw: _Draw, length: int) -> _Draft | None:
        """Follow stated facts from entity to entity without repeats; the last value may be a year."""
        subject = self._random_entity(draw)
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
                return _Draft(_nested(hops), self._answers(subject, relation), tuple(hops))
            seen.append(value)
            subject = value

    def _random_entity(self, draw: _Draw) -> int:
        offset = draw.below(self._size)
        for each in self._ranges.values():
            if offset < each.size:
                return each.start + offset
            offset -= each.size
        raise AssertionError("an offset below the total size is inside one of the ranges")

    def _random_pair(self, relation: Relation, draw: _Draw, *, siblings: bool = False) -> tuple[int, int] | None:
        """Draw two distinct subjects whose passages state the relation; with `siblings`, both have the same value."""
        subjects = self._ranges[relation.domain]
        one = subjects.start + draw.below(subjects.size)
        if siblings:
            other = self._entities.sibling(one, relation, draw.below(1 << 32))
        else:
            other = subjects.start + draw.below(subjects.size)
        stated = all(relation in self._entities.stated(entity) for entity in (one, other))
        return (one, other) if one != other and stated else None

    def _hop(self, subject: int, relation: Relation, noun: str) -> Hop:
        name, value = self._entities.name(subject), self._entities.value_text(subject, relation)
        return Hop(name, relation.key, noun, value, self._passage_id(subject))

    def _answers(self, subject: int, relation: Relation) -> tuple[str, ...]:
        value = self._entities.value_text(subject, relation)
        return (value,) if relation.range is None else name_variants(relation.range, value)


_TYPES: dict[QuestionType, Callable[[_QuestionWriter, _Draw, int], _Draft | None]] = {
    "one_hop": _QuestionWriter.one_hop,
    "two_hop": lambda writer, draw, _: writer.chain(draw, 2),
    "three_hop": lambda writer, draw, _: writer.chain(draw, 3),
    "four_hop": lambda writer, draw, _: writer.chain(draw, 4),
    "comparison": _QuestionWriter.comparison,
    "yes_no": _QuestionWriter.yes_no,
}


def _pick(relations: Sequence[Relation], draw: _Draw) -> Relation:
    return relations[draw.below(len(relations))]


def _nested(hops: Sequence[Hop]) -> str:
    """Ask with nested genitives: What is the NOUN of the NOUN of SUBJECT?"""
    word = "Who" if RELATIONS[hops[-1].relation].range is Kind.PERSON else "What"
    return f"{word} is {' of '.join(f'the {hop.noun}' for hop in reversed(hops))} of {hops[0].subject}?"


def _question_types(mixture: Mapping[QuestionType, float]) -> Iterator[QuestionType]:
    """Yield question types endlessly; the count of each type stays within one of its share."""
    unknown = sorted(set(mixture) - set(_TYPES))
    if unknown or not mixture or min(mixture.values()) < 0 or sum(mixture.values()) <= 0:
        raise ConfigError(
            f"invalid question mixture {dict(mixture)}; give non-negative weights for some of {', '.join(_TYPES)}"
        )
    total = sum(mixture.values())
    due = dict.fromkeys(mixture, 0.0)
    while True:
        for kind, weight in mixture.items():
            due[kind] += weight / total
        kind = max(due, key=due.__getitem__)
        due[kind] -= 1.0
        yield kind


def write_world(
    world: World,
    folder: Path,
    train: int,
    test: int,
    on_row: Callable[[], object] = lambda: None,
    mixture: Mapping[QuestionType, float] | None = None,
) -> dict[str, Any]:
    """Atomically write corpus, questions and manifest to a new folder; return the manifest."""
    if folder.exists():
        raise InputError(f"{folder} already exists and was not changed; choose another folder")

    def counted(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            yield row
            on_row()

    splits: tuple[tuple[str, Split, int], ...] = ((TRAIN, "train", train), (TEST, "test", test))
    with atomic_write(folder) as temporary:
        temporary.mkdir()
        with (temporary / CORPUS).open("w", encoding="utf-8") as file:
            for passage in counted(world.passages()):
                file.write(json.dumps({"id": passage.id, "contents": passage.contents}, ensure_ascii=False) + "\n")
        rows = {CORPUS: len(world)}
        for name, split, count in splits:
            generated = (each.question for each in world.questions(split, count, mixture=mixture or MIXTURE))
            rows[name] = questions.write(temporary / name, counted(generated))
        files = {name: {"rows": count, "sha256": fingerprint(temporary / name)} for name, count in rows.items()}
        header = {"format": FORMAT, "kind": "world", "sleuth": __version__}
        manifest = {**header, "passages": len(world), "seed": world.seed, "files": files}
        if mixture is not None:
            manifest["mixture"] = dict(mixture)
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest
