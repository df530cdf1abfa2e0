"""Questions drawn from a corpus by seed: which passages are asked about, and which of their questions are taken."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Protocol

from sleuth.corpus.progress import Progress, silent
from sleuth.records import Passage, Question
from sleuth.synthesis.cloze.excluded import Excluded, answer_key
from sleuth.synthesis.cloze.joining import Joining, Sort
from sleuth.synthesis.cloze.ledger import EITHER, Ledger
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.pages import Page, read
from sleuth.synthesis.cloze.questioner import drawn, worded

LEARNED = 300_000  # passages whose titles are known; more would take memory, and few of them meet
HOPS_SHARE = 0.4
# Of the questions that take several passages: bridges are to be had only so often, comparisons as often as one likes.
SHARES = {Sort.BRIDGE: 0.65, Sort.CROSSWISE: 0.1, Sort.COMPARISON: 0.25}
WORDINGS = (1, 2)  # what was asked for once is asked for in other words only when all else is
READ_AGAIN = 60_000  # passages whose drafts are kept
COMMON = 10  # pages that give an answer, of so many sampled ones, before it tells nothing of any of them
SAMPLED = 20_000


class Passages(Protocol):
    """Passages by row."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Passage: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What is wanted: `questions` at most, `per_passage` about one passage alone, a share that takes several."""

    questions: int
    seed: int = 0
    per_passage: int = 1
    name: str = "cloze"
    hops_share: float = HOPS_SHARE


@dataclass(slots=True)
class Made:
    """The questions, and what became of the passages."""

    questions: list[Question] = field(default_factory=list)
    passages: int = 0
    excluded: int = 0
    refused: int = 0  # drafts whose answer is one that is measured on

    @property
    def kinds(self) -> Counter[str]:
        """How many questions there are of each type: the kind of the answer, or how passages are joined."""
        return Counter(str(question.type) for question in self.questions)

    @property
    def hops(self) -> Counter[int]:
        """How many questions take one passage, two, and so on."""
        return Counter(len(question.supporting_ids) for question in self.questions)

    @property
    def used(self) -> int:
        """How many passages are asked about."""
        return len({name for question in self.questions for name in question.supporting_ids})


def make(corpus: Passages, terms: Terms, without: Excluded | None = None, progress: Progress = silent) -> Made:
    """Questions about passages in an order drawn by seed; every passage is asked about once before any is again."""
    return _Making(corpus, terms, without or Excluded(), progress).made()


class _Making:
    def __init__(self, corpus: Passages, terms: Terms, without: Excluded, progress: Progress) -> None:
        self._corpus, self._terms, self._without, self._progress = corpus, terms, without, progress
        self._dice = Random(terms.seed)
        self._made = Made(passages=len(corpus))
        self._order = self._dice.sample(range(len(corpus)), len(corpus))
        self._lexicon = Lexicon.learned(self._learned(self._order[:LEARNED]))
        self._page = lru_cache(READ_AGAIN)(self._read)
        measured = without.answers - self._common() if without.answers else frozenset()
        self._ledger = Ledger(terms.name, terms.per_passage, set(without.questions), self._dice, measured)

    def made(self) -> Made:
        """What takes several passages first, then what takes one, in proportion."""
        terms, ledger = self._terms, self._ledger
        several = round(terms.questions * terms.hops_share)
        if several:
            self._join(several)
        for ledger.wordings in WORDINGS:
            for _ in range(terms.per_passage):
                self._until(terms.questions, self._ask, "making questions")
        self._made.refused = ledger.refused
        self._made.questions = self._in_proportion(ledger.questions)
        return self._made

    def _join(self, wanted: int) -> None:
        """Bridges up to their share, then comparisons for what is missing."""
        joining = Joining(self._page, self._lexicon, self._ledger, self._dice)
        for self._ledger.wordings in WORDINGS:
            self._until(round(wanted * SHARES[Sort.BRIDGE]), joining.bridge, "joining passages")
        left = wanted - len(self._ledger.questions)
        joining.cross(round(left * SHARES[Sort.CROSSWISE] / (1 - SHARES[Sort.BRIDGE])))
        for _ in range(self._terms.per_passage):
            self._until(wanted, joining.compare, "comparing passages")
        del self._ledger.questions[wanted:]  # a page may give several at once

    def _in_proportion(self, questions: Sequence[Question]) -> list[Question]:
        """Shuffled and numbered; where few passages can be asked about alone, few questions take several."""
        alone = [question for question in questions if len(question.supporting_ids) == 1]
        joined = [question for question in questions if len(question.supporting_ids) > 1]
        share = self._terms.hops_share
        most = round(len(alone) * share / (1 - share)) + 1 if share < 1 else len(joined)
        self._dice.shuffle(joined)
        kept = [*alone, *joined[:most]]
        self._dice.shuffle(kept)
        return [replace(question, id=f"{self._terms.name}_{place}") for place, question in enumerate(kept)]

    def _until(self, wanted: int, question: Callable[[Page], None], stage: str) -> None:
        """Goes through the passages until there are so many questions; how far it is, is told in passages."""
        for place, row in enumerate(self._order):
            if len(self._ledger.questions) >= wanted:
                return
            page = self._page(row)
            if page is not None:
                question(page)
            if place % 1000 == 0:
                self._progress(stage, place, len(self._order))

    def _learned(self, rows: Sequence[int]) -> Iterator[tuple[int, Passage]]:
        """The passages that may be used; what those left out say is not learned either."""
        for place, row in enumerate(rows):
            passage = self._corpus[row]
            if place % 1000 == 0:
                self._progress("reading titles", place, len(rows))
            if self._without.holds(passage):
                self._made.excluded += 1
            else:
                yield row, passage

    def _ask(self, page: Page) -> None:
        """One more question about a passage alone."""
        if self._ledger.full(page) or not page.clear:
            return
        for draft in drawn(page.drafts, self._dice):
            text = worded(draft, page.subject, self._dice)
            if page.shared and page.subject.topic.name not in text:
                continue
            if self._ledger.alone(page, text, draft):
                return

    def _read(self, row: int) -> Page | None:
        passage = self._corpus[row]
        return None if self._without.holds(passage) else read(passage, self._lexicon)

    def _common(self) -> frozenset[str]:
        """Answers that many pages give, such as a country or a year: to ask for one of them gives nothing away."""
        pages: Counter[str] = Counter()
        for place, row in enumerate(self._order[:SAMPLED]):
            page = self._page(row)
            if page is not None:
                pages.update({answer_key(answer) for draft in page.drafts for answer in draft.answers})
            if place % 1000 == 0:
                self._progress("counting answers", place, min(SAMPLED, len(self._order)))
        return frozenset(answer for answer, count in pages.items() if count >= COMMON).union(EITHER)
