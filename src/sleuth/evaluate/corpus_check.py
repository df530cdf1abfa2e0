"""A corpus looked at whole, in one pass: which answers stand in it, and what is empty, repeated or very long."""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sleuth.corpus.progress import Progress, silent
from sleuth.records import Passage, Question
from sleuth.reward.answers import normalise

EVERY = 1000
QUANTILES = {"shortest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "longest": 1.0}

Key = tuple[str, str]


def key(question: Question) -> Key:
    """What tells a question from all others: ids begin anew in each data set."""
    return question.data_source, question.id


@dataclass(frozen=True, slots=True)
class CorpusCheck:
    """What a corpus holds; `covered` are the questions one of whose answers stands in it, by data set and id.

    `gold` counts the passages that questions name as theirs, `gold_here` those of them that are in the corpus.
    """

    passages: int
    empty: int
    duplicates: int
    words: dict[str, int]
    lengths: list[tuple[str, int]]
    covered: frozenset[Key]
    gold: int
    gold_here: int


def check(
    passages: Iterable[Passage], questions: Sequence[Question], total: int = 0, progress: Progress = silent
) -> CorpusCheck:
    """Reads every passage once; what is kept of one is its length and a hash."""
    sought = Sought(questions)
    gold = {name for question in questions for name in question.supporting_ids}
    here = 0
    lengths: Counter[int] = Counter()
    seen = array("Q")
    empty = 0
    for number, passage in enumerate(passages, 1):
        lengths[len(passage.contents.split())] += 1
        empty += not passage.contents.replace('"', "").strip()
        seen.append(int.from_bytes(hashlib.blake2b(passage.contents.encode(), digest_size=8).digest(), "little"))
        sought.look(passage.contents)
        here += passage.id in gold
        if number % EVERY == 0:
            progress("reading passages", number, total)
    return CorpusCheck(
        passages=lengths.total(),
        empty=empty,
        duplicates=len(seen) - len(np.unique(np.frombuffer(seen, np.uint64))),
        words=_quantiles(lengths),
        lengths=_histogram(lengths),
        covered=frozenset(sought.covered),
        gold=len(gold),
        gold_here=here,
    )


class Sought:
    """The answers of questions, looked for in texts as whole words; an answer found is not looked for again."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.covered: set[Key] = set()
        self._by_first: dict[str, dict[str, list[Key]]] = defaultdict(lambda: defaultdict(list))
        for question in questions:
            for gold in question.golden_answers:
                if words := normalise(gold):
                    self._by_first[words.partition(" ")[0]][words].append(key(question))

    def look(self, text: str) -> None:
        """Notes the questions one of whose answers stands in the text."""
        normalised = normalise(text)
        spaced = f" {normalised} "
        for first in self._by_first.keys() & normalised.split():
            answers = self._by_first[first]
            for words in [each for each in answers if f" {each} " in spaced]:
                self.covered.update(answers.pop(words))
            if not answers:
                del self._by_first[first]


def _quantiles(lengths: Counter[int]) -> dict[str, int]:
    values = np.array(sorted(lengths))
    shares = np.cumsum([lengths[value] for value in values]) / lengths.total()
    return {name: int(values[np.searchsorted(shares, share - 1e-12)]) for name, share in QUANTILES.items()}


def _histogram(lengths: Counter[int]) -> list[tuple[str, int]]:
    """How many passages have up to 25, 50, 100, 200, 400 words, and more."""
    borders = (25, 50, 100, 200, 400)
    counts = [0] * (len(borders) + 1)
    for length, count in lengths.items():
        counts[sum(length > border for border in borders)] += count
    lows = (0, *(border + 1 for border in borders))
    names = [f"{low}-{border}" for low, border in zip(lows, borders, strict=False)] + [f"over {borders[-1]}"]
    return list(zip(names, counts, strict=True))
