"""Several question sets as one: what comes twice, is measured on, or cannot be answered is dropped, and counted."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from sleuth.corpus.datasets.rows import Row, renamed, unused
from sleuth.errors import InputError

SIGNS = re.compile(r"[^\w\s]|_")
TELLING = frozenset({"Mn", "Mc", "Me", "Sm", "Sc", "So"})  # vowel signs and tones; C++, 3 > 2, $5


class Reason(StrEnum):
    """Why a question was left out."""

    UNANSWERABLE = "not answerable"
    TESTED = "in a test set"
    REPEATED = "twice"
    OVER = "over the limit"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A question left out, and the id of the one that it repeats."""

    row: Row
    reason: Reason
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is dropped, and in which order the rest comes: that of the files where `seed` is None."""

    repeated: bool = True
    answerable: bool = False
    limit: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """The questions that are left, and those that are not."""

    rows: tuple[Row, ...]
    dropped: tuple[Dropped, ...]

    def counts(self) -> dict[str, dict[str, int]]:
        """For each set how many were read, dropped for each reason, and kept."""
        kept = Counter(row.question.data_source for row in self.rows)
        lost = Counter((each.row.question.data_source, each.reason) for each in self.dropped)
        names = sorted({*kept, *(name for name, _ in lost)})
        return {
            name: {
                "read": kept[name] + sum(lost[name, reason] for reason in Reason),
                **{reason.value: lost[name, reason] for reason in Reason},
                "kept": kept[name],
            }
            for name in names
        }


def merge(rows: Iterable[Row], rules: Rules, tested: Mapping[str, str] | None = None) -> Merged:
    """Merges rows under rules; `tested` holds the questions of test sets, as `key` writes them, with their ids.

    Ids that clash get a number.
    """
    given = list(rows)
    if rules.answerable and given and all(row.question.answerable is None for row in given):
        raise InputError(
            "no question says whether it is answerable, so --answerable would drop nothing; leave it out, "
            "or give files with that key"
        )
    dropped: list[Dropped] = []
    kept = list(_distinct(_sifted(given, rules, tested or {}, dropped)))
    kept, over = _limited(kept, rules)
    dropped += [Dropped(row, Reason.OVER) for row in over]
    return Merged(tuple(kept), tuple(dropped))


def key(question: str) -> str:
    """What two questions share that are the same but for capitals, accents' encoding, punctuation and spaces."""
    # Before normalising too, which makes a letter's part of an accent that stands alone.
    words = _bare(unicodedata.normalize("NFKC", _bare(question)).casefold()).split()
    return " ".join(words) or question.strip()


def _bare(text: str) -> str:
    return SIGNS.sub(lambda sign: sign[0] if unicodedata.category(sign[0]) in TELLING else " ", text)


def _sifted(rows: Sequence[Row], rules: Rules, tested: Mapping[str, str], dropped: list[Dropped]) -> Iterator[Row]:
    first: dict[str, str] = {}
    for row in rows:
        asked = key(row.question.question)
        if rules.answerable and row.question.answerable is False:
            dropped.append(Dropped(row, Reason.UNANSWERABLE))
        elif asked in tested:
            dropped.append(Dropped(row, Reason.TESTED, tested[asked]))
        elif rules.repeated and asked in first:
            dropped.append(Dropped(row, Reason.REPEATED, first[asked]))
        else:
            first.setdefault(asked, row.question.id)
            yield row


def _distinct(rows: Iterable[Row]) -> Iterator[Row]:
    taken: set[str] = set()
    for row in rows:
        name = unused(row.question.id, taken)
        taken.add(name)
        yield row if name == row.question.id else renamed(row, name)


def _limited(rows: list[Row], rules: Rules) -> tuple[list[Row], list[Row]]:
    """A sample drawn by seed in the order of the rows, then shuffled where a seed is given; and what it left."""
    dice = Random(rules.seed or 0)
    over: list[Row] = []
    if rules.limit is not None and rules.limit < len(rows):
        chosen = set(dice.sample(range(len(rows)), rules.limit))
        over = [row for place, row in enumerate(rows) if place not in chosen]
        rows = [row for place, row in enumerate(rows) if place in chosen]
    if rules.seed is not None:
        dice.shuffle(rows)
    return rows, over
