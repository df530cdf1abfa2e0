"""The generated encyclopedia: passages and questions, deterministic by size and seed, streamed in constant memory."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sleuth.errors import ConfigError, InputError
from sleuth.records import Passage, Question
from sleuth.synthesis.world.ask import FORMS, Asker, Draft, Draw, Hop
from sleuth.synthesis.world.census import Split
from sleuth.synthesis.world.entities import Entities
from sleuth.synthesis.world.permutation import Permutation, key
from sleuth.synthesis.world.prose import Prose

MIXTURE: Mapping[str, float] = MappingProxyType(
    {"one_hop": 0.25, "two_hop": 0.30, "three_hop": 0.15, "comparison": 0.15, "yes_no": 0.15}
)

# A form whose drafts failed or repeated so many times in a row has nothing left to give.
_PATIENCE = 2000


@dataclass(frozen=True, slots=True)
class Posed:
    """A question with its gold path: the chain in order, or one hop for each of two compared, in question order."""

    question: Question
    hops: tuple[Hop, ...]


class World:
    """An encyclopedia of `passages` entities in two halves, train and test, that share no entity and no fact."""

    def __init__(self, passages: int, seed: int) -> None:
        self.seed = seed
        self._size = passages
        self._entities = Entities(passages, seed)
        self._prose = Prose(self._entities, seed)
        self._rows = Permutation(passages, key(seed, "row"))

    def __len__(self) -> int:
        return self._size

    def passage(self, row: int) -> Passage:
        """The passage in a row of the corpus."""
        if not 0 <= row < self._size:
            raise IndexError(f"row {row} of a world with {self._size} passages")
        return Passage(str(row), self._prose.contents(self._rows(row)))

    def passages(self) -> Iterator[Passage]:
        """Every passage, in row order."""
        return map(self.passage, range(self._size))

    def pose(self, split: Split, count: int, seed: int = 0, mixture: Mapping[str, float] = MIXTURE) -> Iterator[Posed]:
        """`count` different questions about the entities of one split, their types mixed in proportion."""
        asker = Asker(self._entities, split, self._passage_id)
        draw = Draw(key(self.seed, "questions", split, seed))
        turns: Counter[str] = Counter()
        texts: set[str] = set()
        for number, form in zip(range(count), _forms(mixture), strict=False):
            draft = _new(asker, form, draw, turns[form], texts)
            if draft is None:
                raise InputError(
                    f"a world of {self._size} passages gives {number} different {split} questions before its {form} "
                    f"questions run out, and {count} were asked for; ask for fewer or make a larger world"
                )
            turns[form] += 1
            texts.add(draft.text)
            yield self._posed(f"{split}-{self.seed}-{seed}-{number}", form, draft)

    def _posed(self, name: str, form: str, draft: Draft) -> Posed:
        question = Question(
            id=name,
            question=draft.text,
            golden_answers=draft.answers,
            data_source="world",
            supporting_ids=tuple(hop.passage_id for hop in draft.hops),
            type=form,
            hops=len(draft.hops),
        )
        return Posed(question, draft.hops)

    def _passage_id(self, entity: int) -> str:
        return str(self._rows.inverse(entity))


def _forms(mixture: Mapping[str, float]) -> Iterator[str]:
    """An endless row of question types in which each type is always within one of its due share."""
    unknown = sorted(set(mixture) - set(FORMS))
    if unknown or not mixture or min(mixture.values()) < 0 or sum(mixture.values()) <= 0:
        raise ConfigError(f"the mixture {dict(mixture)} is not one of weights for {', '.join(FORMS)}; correct it")
    total = sum(mixture.values())
    due = dict.fromkeys(mixture, 0.0)
    while True:
        for form, weight in mixture.items():
            due[form] += weight / total
        form = max(due, key=due.__getitem__)
        due[form] -= 1.0
        yield form


def _new(asker: Asker, form: str, draw: Draw, turn: int, texts: set[str]) -> Draft | None:
    """A draft with a text not yet asked, or None when the form has run dry."""
    for _ in range(_PATIENCE):
        draft = FORMS[form](asker, draw, turn)
        if draft is not None and draft.text not in texts:
            return draft
    return None
