"""Questions from the passages of any documents by rules, checked by the same filters as those of a teacher."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.questions import QuestionRow
from sleuth.records import Passage
from sleuth.synthesis.candidate import Candidate, Evidence
from sleuth.synthesis.documents import DocumentNames
from sleuth.synthesis.filters import NearDuplicates, failed_filter, fold
from sleuth.synthesis.rules.entries import read_entries
from sleuth.synthesis.rules.entry_questions import Draft, entry_drafts
from sleuth.synthesis.rules.sentence_questions import ProperNames, sentence_drafts
from sleuth.synthesis.rules.table_questions import line_drafts, table_drafts
from sleuth.synthesis.vocabulary import Vocabulary

REPORT_EVERY = 500


@dataclass(frozen=True, slots=True)
class RulesConfig:
    """`questions` is the maximum number of questions; `per_passage` limits those about one passage."""

    questions: int
    seed: int = 0
    per_passage: int = 2
    name: str = "rules"


@dataclass(slots=True)
class RulesResult:
    """Accepted candidates, and counts of the drafts that each check removed."""

    name: str
    candidates: list[Candidate] = field(default_factory=list)
    passages: int = 0
    proposed: int = 0
    removed: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> list[QuestionRow]:
        """The candidates as questions, with consecutive ids."""
        return [candidate.row(self.name, number) for number, candidate in enumerate(self.candidates)]


def make_questions(
    passages: Sequence[Passage],
    config: RulesConfig,
    progress: Progress = silent,
    excluded: frozenset[str] = frozenset(),
) -> RulesResult:
    """Make questions about the passages; the same passages and seed give the same questions.

    `excluded` are the keys of questions that must not be asked.
    """
    names, proper = DocumentNames.from_passages(passages), ProperNames.from_passages(passages)
    vocabulary = Vocabulary.from_passages(passages)
    result = RulesResult(config.name, passages=len(passages))
    drafts: list[tuple[Passage, str | None, Draft]] = []
    answers: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for place, passage in enumerate(passages):
        scope = names.name(passage)
        for draft in passage_drafts(passage, scope, proper):
            drafts.append((passage, scope, draft))
            answers[scope, fold(draft.topic)].add(fold(draft.answers[0]))
        if place % REPORT_EVERY == 0:
            progress("reading passages", place, len(passages))
    result.proposed = len(drafts)
    random, duplicates, used = Random(config.seed), NearDuplicates(excluded), Counter[str]()
    random.shuffle(drafts)
    for passage, scope, draft in drafts:
        evidence = tuple(Evidence(passage, quote) for quote in draft.quotes)
        candidate = Candidate(draft.question, draft.answers, evidence, draft.kind)
        if len(answers[scope, fold(draft.topic)]) > 1:
            result.removed["several answers"] += 1
        elif failed := failed_filter(candidate, vocabulary):
            result.removed[failed] += 1
        elif not duplicates.accept(candidate.question, candidate.answers):
            result.removed["near duplicate"] += 1
        elif used[passage.id] >= config.per_passage or len(result.candidates) >= config.questions:
            result.removed["over the limit"] += 1
        else:
            used[passage.id] += 1
            result.candidates.append(candidate)
    return result


def passage_drafts(passage: Passage, scope: str | None, names: ProperNames) -> Iterator[Draft]:
    """Yield the drafts of all rules for a passage."""
    text = passage.text
    for entry in read_entries(text):
        yield from entry_drafts(entry, scope)
    yield from sentence_drafts(text, scope, names)
    yield from table_drafts(text, scope)
    yield from line_drafts(text, scope, opening=passage.extra.get("position") == 0)
