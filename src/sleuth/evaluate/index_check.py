"""Index check: does the corpus contain the answers, and does the search find them?"""

import hashlib
import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError, SearchUnavailable
from sleuth.evaluate.benchmarks import group_by
from sleuth.evaluate.statistics import estimate
from sleuth.page.document import ABSENT, markdown_table
from sleuth.page.index_report import index_page
from sleuth.records import Estimate, Hit, Passage, Question
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.answers import cover_em, normalise
from sleuth.runs.atomic import atomic_write

DEPTHS = (1, 3, 5, 10)
BATCH = 256  # queries per search call
WORST = 10  # missed questions to report
ALL = "all"
REPORT_EVERY = 1000  # passages between two progress reports
QUANTILES = {"shortest": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "longest": 1.0}
LENGTH_BINS = (25, 50, 100, 200, 400)  # upper bounds in words

_NOTE = (
    "Coverage: share of questions with an answer somewhere in the corpus. Recall: share of the gold passages among the "
    "top k hits. Hit: share of questions with an answer in one of the top k hits. The query is the question itself. "
    "Brackets hold 95% intervals."
)

Key = tuple[str, str]


def question_key(question: Question) -> Key:
    """Return the data set and id of a question; ids are unique only within a data set."""
    return question.data_source, question.id


@dataclass(frozen=True, slots=True)
class CorpusCheck:
    """Statistics of a corpus; `covered` holds the questions with an answer in it.

    `gold` counts the gold passages named by the questions, `gold_here` those that are in the corpus.
    """

    passages: int
    empty: int
    duplicates: int
    words: dict[str, int]
    lengths: list[tuple[str, int]]
    covered: frozenset[Key]
    gold: int
    gold_here: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Hits for one question; None if the search failed."""

    question: Question
    hits: tuple[Hit, ...] | None
    covered: bool

    def recall(self, k: int) -> float:
        """Fraction of the gold passages found in the top `k` hits; 0 if the question has no gold passages."""
        found = {hit.passage.id for hit in self.hits[:k]} if self.hits else set()
        gold = set(self.question.supporting_ids)
        return len(gold & found) / len(gold) if gold else 0.0

    def hit(self, k: int) -> float:
        return float(any(cover_em(hit.passage.contents, self.question.golden_answers) for hit in (self.hits or ())[:k]))


@dataclass(frozen=True, slots=True)
class SetCheck:
    """Figures of one data set; recall is averaged over questions with gold passages, None if there are none."""

    questions: int
    with_gold: int
    unavailable: int
    coverage: Estimate
    recall: dict[int, Estimate] | None
    hit: dict[int, Estimate] | None


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """Figures by data set, and the questions whose answer is in the corpus but was not retrieved."""

    corpus: CorpusCheck
    sets: dict[str, SetCheck]
    worst: list[Probe]

    def as_json(self) -> dict[str, Any]:
        worst = [
            {
                "id": probe.question.id,
                "question": probe.question.question,
                "golden_answers": list(probe.question.golden_answers),
                "supporting_ids": list(probe.question.supporting_ids),
                "hits": [
                    {"id": hit.passage.id, "title": hit.passage.title, "score": hit.score} for hit in probe.hits or ()
                ],
            }
            for probe in self.worst
        ]
        corpus = asdict(self.corpus) | {"covered": len(self.corpus.covered)}
        sets = {name: asdict(part) for name, part in self.sets.items()}
        return {"format": 1, "corpus": corpus, "sets": sets, "worst": worst}


def check_corpus(
    passages: Iterable[Passage], questions: Sequence[Question], total: int = 0, progress: Progress = silent
) -> CorpusCheck:
    """Compute corpus statistics in one pass; keeps only a length and a hash per passage in memory."""
    answers = AnswerMatcher(questions)
    gold = {name for question in questions for name in question.supporting_ids}
    lengths: Counter[int] = Counter()
    hashes = array("Q")
    empty = gold_here = 0
    for number, passage in enumerate(passages, 1):
        lengths[len(passage.contents.split())] += 1
        empty += not passage.contents.replace('"', "").strip()
        hashes.append(int.from_bytes(hashlib.blake2b(passage.contents.encode(), digest_size=8).digest(), "little"))
        answers.match(passage.contents)
        gold_here += passage.id in gold
        if number % REPORT_EVERY == 0:
            progress("reading passages", number, total)
    return CorpusCheck(
        passages=lengths.total(),
        empty=empty,
        duplicates=len(hashes) - len(np.unique(np.frombuffer(hashes, np.uint64))),
        words=_quantiles(lengths),
        lengths=_histogram(lengths),
        covered=frozenset(answers.covered),
        gold=len(gold),
        gold_here=gold_here,
    )


class AnswerMatcher:
    """Collects in `covered` the questions whose answers occur, as whole words, in any of the matched texts."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.covered: set[Key] = set()
        self._by_first_word: dict[str, dict[str, list[Key]]] = defaultdict(lambda: defaultdict(list))
        for question in questions:
            for gold in question.golden_answers:
                if words := normalise(gold):
                    self._by_first_word[words.partition(" ")[0]][words].append(question_key(question))

    def match(self, text: str) -> None:
        normalised = normalise(text)
        spaced = f" {normalised} "
        for first in self._by_first_word.keys() & normalised.split():
            answers = self._by_first_word[first]
            for words in [each for each in answers if f" {each} " in spaced]:
                self.covered.update(answers.pop(words))
            if not answers:
                del self._by_first_word[first]


async def check_index(
    retriever: Retriever, questions: Sequence[Question], corpus: CorpusCheck, progress: Progress = silent
) -> IndexCheck:
    if not questions:
        raise InputError("no questions to check the index with; expected at least one")
    probes: list[Probe] = []
    for start in range(0, len(questions), BATCH):
        batch = questions[start : start + BATCH]
        found = await retriever.search([question.question for question in batch], max(DEPTHS))
        for question, answer in zip(batch, found, strict=True):
            hits = None if isinstance(answer, SearchUnavailable) else tuple(answer)
            probes.append(Probe(question, hits, question_key(question) in corpus.covered))
        progress("searching", len(probes), len(questions))
    by_set, depth = group_by(probes, lambda probe: probe.question.data_source), max(DEPTHS)
    sets = {name: _check_set(part) for name, part in by_set.items()} if len(by_set) > 1 else {}
    missed = [probe for probe in probes if probe.hits is not None and probe.covered and not probe.hit(depth)]
    worst = sorted(missed, key=lambda probe: (probe.recall(depth), probe.question.id))[:WORST]
    return IndexCheck(corpus, sets | {ALL: _check_set(probes)}, worst)


def _check_set(probes: Sequence[Probe]) -> SetCheck:
    answered = [probe for probe in probes if probe.hits is not None]
    return SetCheck(
        questions=len(probes),
        with_gold=sum(bool(probe.question.supporting_ids) for probe in probes),
        unavailable=len(probes) - len(answered),
        coverage=estimate([float(probe.covered) for probe in probes]),
        recall=_by_depth([probe for probe in answered if probe.question.supporting_ids], Probe.recall),
        hit=_by_depth(answered, Probe.hit),
    )


def _by_depth(probes: Sequence[Probe], measure: Callable[[Probe, int], float]) -> dict[int, Estimate] | None:
    return {k: estimate([measure(probe, k) for probe in probes]) for k in DEPTHS} if probes else None


def markdown(checked: IndexCheck, title: str) -> str:
    """Format a report: two tables by data set, narrow enough for a terminal, and the corpus statistics."""

    def mean(estimated: Estimate | None) -> str:
        return f"{estimated.value:.2f} [{estimated.low:.2f}, {estimated.high:.2f}]" if estimated else ABSENT

    def by_depth(measured: Mapping[int, Estimate] | None) -> list[str]:
        return [mean(measured[k] if measured else None) for k in DEPTHS]

    recalls = [
        (name, f"{part.questions:,}", mean(part.coverage), *by_depth(part.recall))
        for name, part in checked.sets.items()
    ]
    hits = [(name, *by_depth(part.hit)) for name, part in checked.sets.items()]
    corpus = checked.corpus
    words = ", ".join(f"{name} {count:,}" for name, count in corpus.words.items())
    parts = [
        f"# {title}",
        "\n".join(markdown_table(("Set", "Questions", "Coverage", *(f"Recall@{k}" for k in DEPTHS)), recalls)),
        "\n".join(markdown_table(("Set", *(f"Hit@{k}" for k in DEPTHS)), hits)),
    ]
    if corpus.gold:
        limit = "" if corpus.gold == corpus.gold_here else "; recall counts the missing ones as not found"
        parts.append(f"{corpus.gold_here:,} of the {corpus.gold:,} gold passages are in this index{limit}.")
    parts.append(f"{corpus.empty:,} passages without text, {corpus.duplicates:,} duplicates. Words: {words}.")
    return "\n\n".join([*parts, _NOTE]) + "\n"


def write_check(checked: IndexCheck, out: Path, name: str, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(checked.as_json(), indent=2, allow_nan=False) + "\n"
    with atomic_write(out) as folder:
        folder.mkdir()
        (folder / "check.json").write_text(text, encoding="utf-8")
        # Built from the JSON form, in which depths are strings, as in the file.
        (folder / "report.html").write_text(index_page(name, manifest, json.loads(text)), encoding="utf-8")


def _quantiles(lengths: Counter[int]) -> dict[str, int]:
    values = np.array(sorted(lengths))
    shares = np.cumsum([lengths[value] for value in values]) / lengths.total()
    return {name: int(values[np.searchsorted(shares, share - 1e-12)]) for name, share in QUANTILES.items()}


def _histogram(lengths: Counter[int]) -> list[tuple[str, int]]:
    counts = [0] * (len(LENGTH_BINS) + 1)
    for length, count in lengths.items():
        counts[sum(length > bound for bound in LENGTH_BINS)] += count
    lows = (0, *(bound + 1 for bound in LENGTH_BINS))
    names = [f"{low}-{bound}" for low, bound in zip(lows, LENGTH_BINS, strict=False)] + [f"over {LENGTH_BINS[-1]}"]
    return list(zip(names, counts, strict=True))
