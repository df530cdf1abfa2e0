"""An index put to the question: does the corpus hold the answers, and does the search find them?"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError, SearchUnavailable
from sleuth.evaluate.corpus_check import CorpusCheck, key
from sleuth.evaluate.intervals import estimate
from sleuth.records import Estimate, Hit, Question
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.answers import cover_em

DEPTHS = (1, 3, 5, 10)
BATCH = 256
WORST = 10
ALL = "all"


@dataclass(frozen=True, slots=True)
class Probe:
    """One question searched for as it stands: its best hits, or None where the search failed."""

    question: Question
    hits: tuple[Hit, ...] | None
    covered: bool

    def recall(self, k: int) -> float:
        """The share of its gold passages among the best `k`."""
        found = {hit.passage.id for hit in self.hits[:k]} if self.hits else set()
        gold = set(self.question.supporting_ids)
        return len(gold & found) / len(gold)

    def hit(self, k: int) -> float:
        """1 when an answer stands in one of the best `k`."""
        return float(any(cover_em(hit.passage.contents, self.question.golden_answers) for hit in (self.hits or ())[:k]))


@dataclass(frozen=True, slots=True)
class Part:
    """The questions of one data set; recall is over those that name their gold passages, None where none does."""

    questions: int
    with_gold: int
    unavailable: int
    coverage: Estimate
    recall: dict[int, Estimate] | None
    hit: dict[int, Estimate] | None


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What is to be known of an index before a model is trained on it."""

    corpus: CorpusCheck
    parts: dict[str, Part]
    worst: list[Probe]

    def as_json(self) -> dict[str, Any]:
        corpus = asdict(self.corpus) | {"covered": len(self.corpus.covered)}
        return {
            "format": 1,
            "corpus": corpus,
            "sets": {name: asdict(part) for name, part in self.parts.items()},
            "worst": [_as_json(probe) for probe in self.worst],
        }


async def check(
    retriever: Retriever, questions: Sequence[Question], corpus: CorpusCheck, progress: Progress = silent
) -> IndexCheck:
    """Searches for every question as it stands, and measures what comes back."""
    if not questions:
        raise InputError("there are no questions to check the index with; expected at least one")
    probes: list[Probe] = []
    for start in range(0, len(questions), BATCH):
        part = questions[start : start + BATCH]
        answers = await retriever.search([question.question for question in part], max(DEPTHS))
        for question, found in zip(part, answers, strict=True):
            hits = None if isinstance(found, SearchUnavailable) else tuple(found)
            probes.append(Probe(question, hits, key(question) in corpus.covered))
        progress("searching", len(probes), len(questions))
    return IndexCheck(corpus, _parts(probes), _worst(probes))


def _parts(probes: Sequence[Probe]) -> dict[str, Part]:
    """The parts by data set in order of appearance, and last all questions."""
    by_set: Mapping[str, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_set[probe.question.data_source].append(probe)
    sets = {name: _part(inner) for name, inner in by_set.items()} if len(by_set) > 1 else {}
    return sets | {ALL: _part(probes)}


def _part(probes: Sequence[Probe]) -> Part:
    answered = [probe for probe in probes if probe.hits is not None]
    gold = [probe for probe in answered if probe.question.supporting_ids]
    return Part(
        questions=len(probes),
        with_gold=sum(bool(probe.question.supporting_ids) for probe in probes),
        unavailable=len(probes) - len(answered),
        coverage=estimate([float(probe.covered) for probe in probes]),
        recall=_by_depth(gold, Probe.recall),
        hit=_by_depth(answered, Probe.hit),
    )


def _by_depth(probes: Sequence[Probe], measure: Callable[[Probe, int], float]) -> dict[int, Estimate] | None:
    if not probes:
        return None
    return {k: estimate([measure(probe, k) for probe in probes]) for k in DEPTHS}


def _worst(probes: Sequence[Probe]) -> list[Probe]:
    """Questions whose answer is there and not found: the ones to look at first."""
    depth = max(DEPTHS)
    missed = [probe for probe in probes if probe.hits is not None and probe.covered and not probe.hit(depth)]
    return sorted(missed, key=lambda probe: (_recall(probe, depth), probe.question.id))[:WORST]


def _recall(probe: Probe, k: int) -> float:
    return probe.recall(k) if probe.question.supporting_ids else 0.0


def _as_json(probe: Probe) -> dict[str, Any]:
    return {
        "id": probe.question.id,
        "question": probe.question.question,
        "golden_answers": list(probe.question.golden_answers),
        "supporting_ids": list(probe.question.supporting_ids),
        "hits": [{"id": hit.passage.id, "title": hit.passage.title, "score": hit.score} for hit in probe.hits or ()],
    }
