"""Pipeline of the teacher: propose questions about passages, filter them, and count what each filter removes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from zlib import crc32

from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.questions import QuestionRow
from sleuth.engines.base import Sampling
from sleuth.errors import SearchUnavailable
from sleuth.records import Passage
from sleuth.retrieval.retriever import Retriever
from sleuth.synthesis.candidate import SEARCH_RANK, Candidate
from sleuth.synthesis.documents import DocumentNames, in_scope
from sleuth.synthesis.filters import FILTERS, POINTING, PRONOUN, NearDuplicates, failed_filter
from sleuth.synthesis.rules import generator as rules
from sleuth.synthesis.rules.english import lower_first
from sleuth.synthesis.teacher.calls import CallFailed, TeacherCalls
from sleuth.synthesis.teacher.links import Link, find_links
from sleuth.synthesis.teacher.model_filters import ModelFilters, Verdict
from sleuth.synthesis.teacher.prompts import Prompt
from sleuth.synthesis.teacher.proposal_filters import PROPOSAL_FILTERS, failed_proposal_filter
from sleuth.synthesis.teacher.proposals import linked_candidates, single_candidates
from sleuth.synthesis.teacher.search_check import evidence_rank
from sleuth.synthesis.vocabulary import Vocabulary, content_words

WAVE = 2048  # passages in flight together; the number of accepted questions is checked after each wave
MIN_WORDS = 20  # shorter passages state too little to ask about
MIN_PROSE = 0.6  # share of plain words below which a passage is code or a table of numbers
SEED_LIMIT = 2**31
MODEL_FILTERS = (
    "known without documents",
    "other answer from the evidence",
    "unstable answer",
    "other answer from the quote",
    "one passage suffices",
)


@dataclass(frozen=True, slots=True)
class TeacherConfig:
    """Parameters of a run.

    `questions` is the number of questions to stop at, `per_passage` the number to ask for per passage, and `linked` the
    number of linked pairs relative to the number of passages. With `found_within`, questions whose evidence is not
    among that many hits are dropped; otherwise the rank is only recorded. With `rules`, the teacher also
    checks drafts by rules.
    """

    questions: int
    seed: int = 0
    name: str = "teacher"
    per_passage: int = 3
    linked: float = 0.2
    temperature: float = 0.7
    max_tokens: int = 400
    search_k: int = 10
    found_within: int | None = None
    rules: bool = True


@dataclass(slots=True)
class TeacherResult:
    """Accepted questions, and counts: passages, candidates, and those removed by each filter, in order."""

    rows: list[QuestionRow] = field(default_factory=list)
    passages: int = 0
    asked: int = 0
    skipped: int = 0
    linked: int = 0
    drafts: int = 0  # by rules, checked by the teacher
    proposed: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    waiting: int = 0  # candidates and passages whose calls failed
    stopped: bool = False  # the teacher failed repeatedly

    def report(self) -> dict[str, Any]:
        return {
            "passages": self.passages,
            "passages_asked": self.asked,
            "passages_skipped": self.skipped,
            "linked_pairs_asked": self.linked,
            "drafts_by_rules": self.drafts,
            "proposed": self.proposed,
            "removed": {name: self.removed[name] for name in sorted(self.removed, key=_filter_order)},
            "waiting": self.waiting,
            "accepted": len(self.rows),
        }


def _filter_order(name: str) -> int:
    """Position of a filter in the order in which filters are applied; others come last."""
    names = [*FILTERS, *PROPOSAL_FILTERS, *MODEL_FILTERS]
    return names.index(name) if name in names else len(names)


async def make_questions(
    passages: Sequence[Passage],
    calls: TeacherCalls,
    prompts: Mapping[str, Prompt],
    config: TeacherConfig,
    retriever: Retriever | None = None,
    progress: Progress = silent,
    excluded: frozenset[str] = frozenset(),
) -> TeacherResult:
    """Ask about the passages in random order until there are enough questions; the same replies give the same file.

    `excluded` are the keys of questions that must not be asked.
    """
    return await _Pipeline(passages, calls, prompts, config, retriever, progress, excluded).run()


def is_prose(passage: Passage) -> bool:
    """Whether a passage has enough plain words to ask about."""
    found = passage.text.split()
    plain = sum(word.strip(".,;:!?()\"'“”‘’").isalpha() for word in found)
    return len(found) >= MIN_WORDS and plain >= MIN_PROSE * len(found)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A candidate with the filter that removed it, if any; `waiting` if a call failed."""

    candidate: Candidate
    removed_by: str | None = None
    waiting: bool = False


class _Pipeline:
    def __init__(
        self,
        passages: Sequence[Passage],
        calls: TeacherCalls,
        prompts: Mapping[str, Prompt],
        config: TeacherConfig,
        retriever: Retriever | None,
        progress: Progress,
        excluded: frozenset[str],
    ) -> None:
        self._calls, self._prompts, self._config = calls, prompts, config
        self._retriever, self._progress = retriever, progress
        self._names = DocumentNames.from_passages(passages)
        self._vocabulary = Vocabulary.from_passages(passages)
        self._filters = ModelFilters(calls, prompts)
        self._result = TeacherResult(passages=len(passages))
        self._duplicates = NearDuplicates(excluded)
        prose = [passage for passage in passages if is_prose(passage)]
        self._result.skipped = len(passages) - len(prose)
        self._order = Random(config.seed).sample(prose, len(prose))
        self._links = find_links(prose, round(config.linked * len(prose)), config.seed)
        self._done = 0
        limit = config.questions if config.rules else 0
        drafted = rules.make_questions(passages, rules.RulesConfig(limit, config.seed), progress, excluded)
        self._drafts = drafted.candidates
        self._result.drafts = len(self._drafts)

    async def run(self) -> TeacherResult:
        """Work in waves of passages and a fitting number of links, until there are enough questions."""
        result, share = self._result, len(self._links) / max(1, len(self._order))
        for start in range(0, len(self._order), WAVE):
            if len(result.rows) >= self._config.questions or self._calls.unusable:
                break
            wave = self._order[start : start + WAVE]
            links = self._links[round(start * share) : round((start + len(wave)) * share)]
            await self._run_wave(wave, links)
        result.stopped = self._calls.unusable
        return result

    async def _run_wave(self, passages: Sequence[Passage], links: Sequence[Link]) -> None:
        jobs: list[Awaitable[list[_Outcome] | CallFailed]] = [self._check_draft(draft) for draft in self._take_drafts()]
        jobs += [self._ask_single(passage) for passage in passages]
        jobs += [self._ask_linked(link) for link in links]
        self._result.asked += len(passages)
        self._result.linked += len(links)
        self._done, total = 0, len(jobs)

        async def counted(job: Awaitable[list[_Outcome] | CallFailed]) -> list[_Outcome] | CallFailed:
            found = await job
            self._done += 1
            self._progress("asking the teacher", self._done, total)
            return found

        # Collected in the order of the passages, so that the result does not depend on the order of the replies.
        for outcome in await asyncio.gather(*map(counted, jobs)):
            if isinstance(outcome, CallFailed):
                self._result.removed["refused by the teacher"] += outcome.final
                self._result.waiting += not outcome.final
                continue
            for each in outcome:
                self._collect(each)

    def _collect(self, outcome: _Outcome) -> None:
        result, candidate = self._result, outcome.candidate
        result.proposed += 1
        if outcome.waiting:
            result.waiting += 1
        elif outcome.removed_by is not None:
            result.removed[outcome.removed_by] += 1
        elif not self._duplicates.accept(candidate.question, candidate.answers):
            result.removed["near duplicate"] += 1
        elif len(result.rows) >= self._config.questions:
            result.removed["over the limit"] += 1
        else:
            result.rows.append(candidate.row(self._config.name, len(result.rows)))

    def _take_drafts(self) -> list[Candidate]:
        """Return all drafts of the rules the first time."""
        drafts, self._drafts = self._drafts, []
        return drafts

    async def _check_draft(self, draft: Candidate) -> list[_Outcome] | CallFailed:
        """Check a draft by rules, which repeats the words of the text: one reading suffices."""
        return [await self._verify(draft, only=2)]

    async def _ask_single(self, passage: Passage) -> list[_Outcome] | CallFailed:
        messages = self._prompts["single"].messages(
            title=self._names.name(passage) or passage.title, passage=passage.text, count=str(self._config.per_passage)
        )
        return await self._propose("propose", messages, passage.id, lambda reply: single_candidates(reply, passage))

    async def _ask_linked(self, link: Link) -> list[_Outcome] | CallFailed:
        first, second = link.first, link.second
        messages = self._prompts["linked"].messages(
            name=link.name,
            title=self._names.name(first) or first.title,
            passage=first.text,
            other_title=self._names.name(second) or second.title,
            other_passage=second.text,
        )

        def read(reply: str) -> Iterator[Candidate]:
            # A question that contains the name needs the second passage only.
            found = linked_candidates(reply, first, second, link.name)
            return (each for each in found if link.name.lower() not in each.question.lower())

        return await self._propose("propose linked", messages, f"{first.id} {second.id}", read)

    async def _propose(
        self,
        stage: str,
        messages: Sequence[Mapping[str, str]],
        place: str,
        read: Callable[[str], Iterator[Candidate]],
    ) -> list[_Outcome] | CallFailed:
        config = self._config
        seed = (crc32(place.encode()) + config.seed) % SEED_LIMIT
        sampling = Sampling(config.max_tokens, config.temperature, seed=seed)
        reply = await self._calls.ask(stage, messages, sampling)
        if isinstance(reply, CallFailed):
            return reply
        return await asyncio.gather(*(self._filter(candidate) for candidate in read(reply)))

    async def _filter(self, candidate: Candidate) -> _Outcome:
        """Check a candidate without the teacher, then with it."""
        candidate = self._with_subject(candidate)
        if failed := failed_filter(candidate, self._vocabulary) or failed_proposal_filter(candidate):
            return _Outcome(candidate, failed)
        return await self._verify(candidate)

    async def _verify(self, candidate: Candidate, only: int | None = None) -> _Outcome:
        """Check a candidate with the teacher, by all or the first filters."""
        checks: tuple[Callable[[Candidate], Awaitable[Verdict]], ...] = (
            self._filters.not_known,
            self._filters.round_trip,
            self._filters.is_stable,
            self._filters.quote_suffices,
            self._filters.needs_each,
        )
        for name, check in list(zip(MODEL_FILTERS, checks, strict=True))[:only]:
            verdict = await check(candidate)
            if isinstance(verdict, CallFailed):
                return _Outcome(candidate, "refused by the teacher" if verdict.final else None, not verdict.final)
            if not verdict:
                return _Outcome(candidate, name)
        return await self._search(candidate)

    async def _search(self, candidate: Candidate) -> _Outcome:
        """Record the rank of the evidence, and remove a candidate whose evidence search does not find."""
        if self._retriever is None:
            return _Outcome(candidate)
        limit = self._config.found_within
        rank = await evidence_rank(candidate, self._retriever, limit or self._config.search_k)
        if isinstance(rank, SearchUnavailable):
            return _Outcome(candidate, waiting=True)
        if limit is not None and rank is None:
            return _Outcome(candidate, "not found by search")
        return _Outcome(replace(candidate, extra={**candidate.extra, SEARCH_RANK: rank}))

    def _with_subject(self, candidate: Candidate) -> Candidate:
        """Add the name of the document to a question that has none of its words: other documents may be similar."""
        name, question = self._names.name(candidate.evidence[-1].passage), candidate.question
        if name is None or len(candidate.evidence) > 1 or not question:
            return candidate
        # A question that refers to other text would still do so; the filter removes it.
        if POINTING.search(question) or PRONOUN.search(question):
            return candidate
        if set(content_words(question)) & set(content_words(name)):
            return candidate
        return replace(candidate, question=f"{in_scope(name, 'In').lstrip()}, {lower_first(question)}")
