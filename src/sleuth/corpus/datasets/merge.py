"""Merging of question sets: repeated, test and unanswerable questions are dropped and counted."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from sleuth.corpus.questions import QuestionRow, unused_id
from sleuth.errors import InputError

PUNCTUATION = re.compile(r"[^\w\s]|_")
MEANINGFUL = frozenset({"Mn", "Mc", "Me", "Sm", "Sc", "So"})  # vowel signs, tones, symbols: C++, 3 > 2, $5


class DropReason(StrEnum):
    """Why a question was dropped."""

    UNANSWERABLE = "not answerable"
    TESTED = "in a test set"
    REPEATED = "twice"
    OVER_LIMIT = "over the limit"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped question, the reason, and the id of the question it repeats, if any."""

    row: QuestionRow
    reason: DropReason
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which questions are dropped, and the shuffling seed; None keeps the order of the files."""

    repeated: bool = True
    answerable: bool = False
    limit: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The kept and the dropped questions."""

    rows: tuple[QuestionRow, ...]
    dropped: tuple[Dropped, ...]

    def counts(self) -> dict[str, dict[str, int]]:
        """Count, per set, the questions read, dropped for each reason, and kept."""
        kept = Counter(row.question.data_source for row in self.rows)
        lost = Counter((each.row.question.data_source, each.reason) for each in self.dropped)
        return {
            name: {
                "read": kept[name] + sum(lost[name, reason] for reason in DropReason),
                **{reason.value: lost[name, reason] for reason in DropReason},
                "kept": kept[name],
            }
            for name in sorted({*kept, *(name for name, _ in lost)})
        }


def merge(rows: Iterable[QuestionRow], rules: MergeRules, tested: Mapping[str, str] | None = None) -> Merged:
    """Merge rows, adding suffixes to conflicting ids; `tested` maps keys of test questions to their ids."""
    given = list(rows)
    if rules.answerable and given and all(row.question.answerable is None for row in given):
        raise InputError(
            "no question says whether it is answerable, so --answerable would drop nothing; leave it out, "
            "or give files with that key"
        )
    dropped: list[Dropped] = []
    kept: list[QuestionRow] = []
    taken: set[str] = set()
    for row in _filter(given, rules, tested or {}, dropped):
        kept.append(row.with_id(unused_id(row.question.id, taken)))
        taken.add(kept[-1].question.id)
    random = Random(rules.seed or 0)
    if rules.limit is not None and rules.limit < len(kept):
        chosen = set(random.sample(range(len(kept)), rules.limit))
        dropped += [Dropped(row, DropReason.OVER_LIMIT) for place, row in enumerate(kept) if place not in chosen]
        kept = [row for place, row in enumerate(kept) if place in chosen]
    if rules.seed is not None:
        random.shuffle(kept)
    return Merged(tuple(kept), tuple(dropped))


def question_key(question: str) -> str:
    """Normalise case, accent encoding, punctuation and spaces of a question, for detecting duplicates."""
    # Also before Unicode normalisation, which would combine a free-standing accent with a letter.
    words = _strip_punctuation(unicodedata.normalize("NFKC", _strip_punctuation(question)).casefold()).split()
    return " ".join(words) or question.strip()


def _strip_punctuation(text: str) -> str:
    return PUNCTUATION.sub(lambda sign: sign[0] if unicodedata.category(sign[0]) in MEANINGFUL else " ", text)


def _filter(
    rows: Sequence[QuestionRow], rules: MergeRules, tested: Mapping[str, str], dropped: list[Dropped]
) -> Iterator[QuestionRow]:
    """Yield the rows to keep, and append the others to `dropped`."""
    first: dict[str, str] = {}
    for row in rows:
        key = question_key(row.question.question)
        if rules.answerable and row.question.answerable is False:
            dropped.append(Dropped(row, DropReason.UNANSWERABLE))
        elif key in tested:
            dropped.append(Dropped(row, DropReason.TESTED, tested[key]))
        elif rules.repeated and key in first:
            dropped.append(Dropped(row, DropReason.REPEATED, first[key]))
        else:
            first.setdefault(key, row.question.id)
            yield row
