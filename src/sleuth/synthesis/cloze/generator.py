"""Question generator: samples single-hop, bridge and comparison questions from a corpus, deterministic for a seed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Protocol

from sleuth.corpus.datasets.merge import question_key
from sleuth.corpus.passages import PassageStore, survey
from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.sources import plain_corpus
from sleuth.records import Passage, Question
from sleuth.synthesis.cloze.bridges import (
    Chain,
    bridge_drafts,
    extend_chain,
    find_links,
    intersection_draft,
    start_chain,
)
from sleuth.synthesis.cloze.comparisons import Comparison, Comparisons, compare_makers
from sleuth.synthesis.cloze.exclusion import Exclusions, answer_key
from sleuth.synthesis.cloze.grammar import Draft
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.relations import MAKER_ROLES, Relation
from sleuth.synthesis.cloze.single_hop import Page, analyze, choose_wording, shuffle_by_weight

LEXICON_PASSAGES = 300_000  # limits the memory of the lexicon
CACHED_PAGES = 60_000
SAMPLED_PAGES = 20_000  # pages sampled to count how often each answer occurs
COMMON_ANSWER = 10  # an answer with this many occurrences in the sample identifies no page
MAX_WORDINGS = (1, 2)  # maximum wordings per question and answer; a second wording only when nothing else is left
MULTI_HOP_FACTOR = 3  # multi-hop questions per passage, relative to single-hop ones
MAX_YES_NO_LEAD = 3  # maximum difference between the counts of yes and no answers
OPPOSITE = {"yes": "no", "no": "yes"}
MAX_PAGES_PER_TITLE = 8  # a link to a more common title is too ambiguous
MAX_PER_CHAIN = 4


class MultiHopType(StrEnum):
    BRIDGE = "bridge"
    COMPARISON = "comparison"
    BRIDGE_COMPARISON = "bridge comparison"


# Shares among multi-hop questions. Bridges are limited by the corpus; comparisons are not.
SHARES = {MultiHopType.BRIDGE: 0.65, MultiHopType.BRIDGE_COMPARISON: 0.1, MultiHopType.COMPARISON: 0.25}


class Passages(Protocol):
    """Random access to passages by row."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Passage: ...


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """`questions` is the maximum number of questions; `per_passage` limits single-hop questions per passage."""

    questions: int
    seed: int = 0
    per_passage: int = 1
    name: str = "cloze"
    hops_share: float = 0.4  # share of multi-hop questions


@dataclass(slots=True)
class GeneratedQuestions:
    """Generated questions with statistics; `rejected` counts drafts whose answer is excluded."""

    questions: list[Question] = field(default_factory=list)
    passages: int = 0
    excluded: int = 0
    rejected: int = 0

    @property
    def type_counts(self) -> Counter[str]:
        """Count the questions by type: the kind of the answer, or the multi-hop type."""
        return Counter(str(question.type) for question in self.questions)

    @property
    def hop_counts(self) -> Counter[int]:
        return Counter(len(question.supporting_ids) for question in self.questions)

    @property
    def passages_used(self) -> int:
        return len({name for question in self.questions for name in question.supporting_ids})


@contextmanager
def open_corpus(source: Path, progress: Progress = silent) -> Iterator[PassageStore]:
    """Open the passages of any source that can be indexed; temporary files are removed afterwards."""
    with TemporaryDirectory() as folder:
        corpus = plain_corpus(source, Path(folder), progress).path
        survey(corpus, Path(folder), progress, source)
        yield PassageStore(corpus, Path(folder))


def generate(
    corpus: Passages, config: GeneratorConfig, exclusions: Exclusions | None = None, progress: Progress = silent
) -> GeneratedQuestions:
    """Generate questions; every passage is used once before any is used again."""
    return _Generator(corpus, config, exclusions or Exclusions(), progress).run()


@dataclass(slots=True)
class QuestionCollector:
    """Accepts distinct questions within quotas per passage, and balances yes and no answers.

    `seen` holds normalized questions that must not be asked, and `excluded_answers` normalized answers.
    """

    name: str
    per_passage: int
    seen: set[str]
    rng: Random
    excluded_answers: frozenset[str] = frozenset()
    rejected: int = 0
    max_wordings: int = 1
    questions: list[Question] = field(default_factory=list)
    _single_hop: Counter[str] = field(default_factory=Counter)
    _multi_hop: Counter[str] = field(default_factory=Counter)
    _yes_no: Counter[str] = field(default_factory=Counter)
    _wordings: Counter[tuple[tuple[str, ...], str]] = field(default_factory=Counter)

    def single_hop_full(self, page: Page) -> bool:
        """Whether the quota of single-hop questions about a page is used up."""
        return self._single_hop[page.id] >= self.per_passage

    def multi_hop_full(self, page: Page) -> bool:
        """Whether the quota of multi-hop questions about a page is used up."""
        return self._multi_hop[page.id] >= MULTI_HOP_FACTOR * self.per_passage

    def add_single_hop(self, page: Page, text: str, draft: Draft) -> bool:
        """Add a question about one page; return whether it was accepted."""
        if not self._add(text, draft.answers, (page.id,), draft.kind.value):
            return False
        self._single_hop[page.id] += 1
        return True

    def add_multi_hop(
        self, counted: Sequence[Page], pages: Sequence[Page], text: str, answers: tuple[str, ...], kind: str
    ) -> bool:
        """Add a question that counts towards the quotas of the pages `counted`; return whether it was accepted."""
        answer, opposite = answers[0], OPPOSITE.get(answers[0])
        is_unbalanced = opposite and self._yes_no[answer] >= self._yes_no[opposite] + MAX_YES_NO_LEAD
        if any(map(self.multi_hop_full, counted)) or is_unbalanced:
            return False
        if not self._add(text, answers, tuple(page.id for page in pages), kind):
            return False
        self._multi_hop.update(page.id for page in counted)
        self._yes_no[answer] += answer in OPPOSITE
        return True

    def _add(self, text: str, answers: tuple[str, ...], ids: tuple[str, ...], kind: str) -> bool:
        normalized, fact = question_key(text), (ids, answers[0])
        if normalized in self.seen or self._wordings[fact] >= self.max_wordings:
            return False
        if self.excluded_answers and any(answer_key(answer) in self.excluded_answers for answer in answers):
            self.rejected += 1
            return False
        self.seen.add(normalized)
        self._wordings[fact] += 1
        # One question in three is worded like a search query.
        text = text.rstrip("?").lower() if self.rng.random() < 1 / 3 else text
        name = f"{self.name}_{len(self.questions)}"
        self.questions.append(Question(name, text, answers, self.name, ids, kind, len(ids)))
        return True


class _MultiHop:
    """Generates multi-hop questions page by page."""

    def __init__(
        self, page: Callable[[int], Page | None], lexicon: Lexicon, collector: QuestionCollector, rng: Random
    ) -> None:
        self._page, self._lexicon, self._collector, self._rng = page, lexicon, collector, rng
        self._comparisons = Comparisons(rng)
        self._works: dict[Relation, list[tuple[Page, Page]]] = {relation: [] for relation in MAKER_ROLES}
        self._seen: set[str] = set()

    def add_bridges(self, page: Page) -> None:
        """Add bridge questions that start at a page, and register the page for comparisons."""
        if not page.identifiable:
            return
        chain = start_chain(page, self._rng)
        is_new = page.id not in self._seen
        if is_new:
            self._seen.add(page.id)
            self._comparisons.add(page)
        for two_hop in self._extensions(chain):
            relation = two_hop.relations[-1]
            if is_new and relation in self._works:
                self._works[relation].append((page, two_hop.pages[1]))
            self._add_bridge_questions(two_hop)
            draft = intersection_draft(two_hop, self._rng)
            if draft:
                self._add(two_hop.pages, two_hop.pages, draft, MultiHopType.BRIDGE)
            for three_hop in self._extensions(two_hop):
                self._add_bridge_questions(three_hop)

    def add_comparison(self, page: Page) -> None:
        """Add one comparison between a registered page and another page."""
        if page.id not in self._seen or self._collector.multi_hop_full(page):
            return
        found = self._comparisons.compare(page)
        if found:
            self._add(found.pages, found.pages, found, MultiHopType.COMPARISON)

    def add_bridge_comparisons(self, count: int) -> None:
        """Add up to `count` questions that compare two works by their makers."""
        goal = len(self._collector.questions) + count
        tries = 6 * count
        works = [(relation, each) for relation, found in self._works.items() for each in found]
        while works and tries and len(self._collector.questions) < goal:
            tries -= 1
            relation, one = self._rng.choice(works)
            other = self._rng.choice(self._works[relation])
            found = compare_makers(one, other, relation, self._rng)
            if found:
                self._add(found.pages[:2], found.pages, found, MultiHopType.BRIDGE_COMPARISON)

    def _add(
        self, counted: Sequence[Page], pages: Sequence[Page], found: Draft | Comparison, kind: MultiHopType
    ) -> bool:
        return self._collector.add_multi_hop(counted, pages, found.text, found.answers, kind)

    def _extensions(self, chain: Chain) -> Iterator[Chain]:
        for link in find_links(chain.pages[-1], self._lexicon):
            pages = tuple(page for page in map(self._page, link.rows[:MAX_PAGES_PER_TITLE]) if page)
            for page in pages:
                extended = extend_chain(chain, link, page, pages, self._rng)
                if extended:
                    yield extended

    def _add_bridge_questions(self, chain: Chain) -> None:
        ends, added = (chain.pages[0], chain.pages[-1]), 0
        for draft in bridge_drafts(chain, self._rng):
            if added >= MAX_PER_CHAIN or any(map(self._collector.multi_hop_full, ends)):
                return
            added += self._add(ends, chain.pages, draft, MultiHopType.BRIDGE)


class _Generator:
    def __init__(self, corpus: Passages, config: GeneratorConfig, exclusions: Exclusions, progress: Progress) -> None:
        self._corpus, self._config, self._exclusions, self._progress = corpus, config, exclusions, progress
        self._rng = Random(config.seed)
        self._result = GeneratedQuestions(passages=len(corpus))
        self._order = self._rng.sample(range(len(corpus)), len(corpus))
        self._lexicon = Lexicon.from_passages(self._lexicon_passages())
        self._page = lru_cache(CACHED_PAGES)(self._analyze)
        excluded = exclusions.answers - self._common_answers() if exclusions.answers else frozenset()
        self._collector = QuestionCollector(
            config.name, config.per_passage, set(exclusions.questions), self._rng, excluded
        )

    def run(self) -> GeneratedQuestions:
        """Generate multi-hop questions, then fill the remaining number with single-hop questions."""
        config, collector = self._config, self._collector
        multi_hop = round(config.questions * config.hops_share)
        if multi_hop:
            self._add_multi_hop(multi_hop)
        for collector.max_wordings in MAX_WORDINGS:
            for _ in range(config.per_passage):
                self._for_each_page(self._add_single_hop, config.questions, "making questions")
        self._result.rejected = collector.rejected
        self._result.questions = self._balance(collector.questions)
        return self._result

    def _add_multi_hop(self, count: int) -> None:
        generator = _MultiHop(self._page, self._lexicon, self._collector, self._rng)
        bridges = round(count * SHARES[MultiHopType.BRIDGE])
        for self._collector.max_wordings in MAX_WORDINGS:
            self._for_each_page(generator.add_bridges, bridges, "joining passages")
        left = count - len(self._collector.questions)
        share = SHARES[MultiHopType.BRIDGE_COMPARISON] / (1 - SHARES[MultiHopType.BRIDGE])
        generator.add_bridge_comparisons(round(left * share))
        for _ in range(self._config.per_passage):
            self._for_each_page(generator.add_comparison, count, "comparing passages")
        del self._collector.questions[count:]  # one page may add several questions

    def _add_single_hop(self, page: Page) -> None:
        if self._collector.single_hop_full(page) or not page.identifiable:
            return
        for draft in shuffle_by_weight(page.drafts, self._rng):
            text = choose_wording(draft, page.subject, self._rng)
            if page.ambiguous and page.subject.topic.name not in text:
                continue
            if self._collector.add_single_hop(page, text, draft):
                return

    def _balance(self, questions: Sequence[Question]) -> list[Question]:
        """Shuffle and number the questions, dropping multi-hop questions that exceed their share."""
        single = [question for question in questions if len(question.supporting_ids) == 1]
        multi = [question for question in questions if len(question.supporting_ids) > 1]
        share = self._config.hops_share
        limit = round(len(single) * share / (1 - share)) + 1 if share < 1 else len(multi)
        self._rng.shuffle(multi)
        kept = [*single, *multi[:limit]]
        self._rng.shuffle(kept)
        return [replace(question, id=f"{self._config.name}_{number}") for number, question in enumerate(kept)]

    def _for_each_page(self, add: Callable[[Page], None], count: int, stage: str) -> None:
        """Call `add` for the pages in random order until there are `count` questions."""
        for index, row in enumerate(self._order):
            if len(self._collector.questions) >= count:
                return
            page = self._page(row)
            if page is not None:
                add(page)
            if index % 1000 == 0:
                self._progress(stage, index, len(self._order))

    def _lexicon_passages(self) -> Iterator[tuple[int, Passage]]:
        rows = self._order[:LEXICON_PASSAGES]
        for index, row in enumerate(rows):
            passage = self._corpus[row]
            if index % 1000 == 0:
                self._progress("reading titles", index, len(rows))
            if self._exclusions.excludes(passage):
                self._result.excluded += 1
            else:
                yield row, passage

    def _analyze(self, row: int) -> Page | None:
        passage = self._corpus[row]
        return None if self._exclusions.excludes(passage) else analyze(passage, self._lexicon)

    def _common_answers(self) -> frozenset[str]:
        """Return answers shared by many pages, such as a country or a year, which need not be excluded."""
        rows = self._order[:SAMPLED_PAGES]
        counts: Counter[str] = Counter()
        for index, row in enumerate(rows):
            page = self._page(row)
            if page is not None:
                counts.update({answer_key(answer) for draft in page.drafts for answer in draft.answers})
            if index % 1000 == 0:
                self._progress("counting answers", index, len(rows))
        return frozenset(answer for answer, count in counts.items() if count >= COMMON_ANSWER).union(OPPOSITE)
