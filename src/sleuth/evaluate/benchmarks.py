"""Benchmark questions: named suites or question files, optionally reduced to a stratified sample."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sleuth.corpus.questions import load
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.reward.answers import warn_wordless

# Data sets and test-set sizes in the order of Search-R1's tables (arXiv 2503.09516).
SUITES: dict[str, dict[str, int]] = {
    "search-r1": {
        "nq": 3_610,
        "triviaqa": 11_313,
        "popqa": 14_267,
        "hotpotqa": 7_405,
        "2wikimultihopqa": 12_576,
        "musique": 2_417,
        "bamboogle": 125,
    }
}
COMBINED = "questions.jsonl"  # written by `sleuth data prepare` for several data sets
SEPARATE = (".test.jsonl", ".test.jsonl.gz", "/questions.jsonl")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Sample:
    """Size of a sample, number of questions it was drawn from, and random seed."""

    limit: int
    of: int
    seed: int

    def sentence(self) -> str:
        return f"Sample: {self.limit:,} of {self.of:,} questions, divided evenly over the data sets, seed {self.seed}."


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Questions to ask, in order, with notes for readers of the results; `whole` is the set before sampling."""

    questions: tuple[Question, ...]
    sample: Sample | None = None
    notes: tuple[str, ...] = ()
    whole: tuple[Question, ...] = ()


def load_benchmark(suites: Sequence[str], folder: Path, limit: int | None = None, seed: int = 0) -> Benchmark:
    """Load suites by name or file; with a limit, draw a sample."""
    questions = [question for suite in suites for question in _load_suite(suite, folder)]
    seen: set[tuple[str, str]] = set()
    for question in questions:
        if (key := (question.data_source, question.id)) in seen:
            raise InputError(
                f"question {question.id!r} of data set {question.data_source!r} occurs twice; name each file once, and "
                "give different data sets different data_source values"
            )
        seen.add(key)
    sizes = {name: len(part) for name, part in by_data_set(questions).items()}
    notes = [
        f"{name} has {sizes.get(name, 0):,} questions; the protocol of {suite} has {size:,}."
        for suite in suites
        for name, size in SUITES.get(suite, {}).items()
        if sizes.get(name, 0) != size
    ]
    whole = selected = tuple(questions)
    sample = None
    if limit is not None and limit < len(whole):
        selected, sample = tuple(draw(whole, limit, seed)), Sample(limit, len(whole), seed)
    return Benchmark(selected, sample, (*notes, *filter(None, [warn_wordless(selected)])), whole)


def draw(questions: Sequence[Question], limit: int, seed: int) -> list[Question]:
    """Draw `limit` questions, equally many from each data set, keeping their order.

    The headline figure is the mean over data sets, so small sets need as many questions as large ones. With the same
    seed, a smaller sample is a subset of a larger one.
    """
    sets = by_data_set(questions)
    if limit < len(sets):
        raise InputError(f"--limit {limit} is below the number of data sets ({len(sets)}); raise it")
    chosen: set[tuple[str, str]] = set()
    for place, (name, part) in enumerate(sorted(sets.items(), key=lambda entry: len(entry[1]))):
        # Smallest set first: what it cannot fill goes to the larger ones.
        share = min(len(part), (limit - len(chosen)) // (len(sets) - place))
        order = list(part)
        random.Random(f"{seed}/{name}").shuffle(order)
        chosen |= {(name, question.id) for question in order[:share]}
    return [question for question in questions if (question.data_source, question.id) in chosen]


def group_by(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_data_set(questions: Iterable[Question]) -> dict[str, list[Question]]:
    return group_by(questions, lambda question: question.data_source)


def _load_suite(suite: str, folder: Path) -> list[Question]:
    if suite not in SUITES:
        if not Path(suite).exists():
            raise InputError(
                f"--suite {suite} is neither a suite nor a file; expected {', '.join(SUITES)} or a question file"
            )
        return load(Path(suite))
    combined = by_data_set(load(folder / COMBINED)) if (folder / COMBINED).is_file() else {}
    files = {
        name: next((file for end in SEPARATE if (file := folder / f"{name}{end}").is_file()), None)
        for name in SUITES[suite]
    }
    if missing := [name for name, file in files.items() if file is None and name not in combined]:
        # An existing folder is not overwritten, so each set goes into a folder below it.
        names, out = ("NAME", f"{folder}/NAME") if folder.exists() else (" ".join(missing), str(folder))
        raise InputError(
            f"{folder} lacks {len(missing)} of the {len(files)} data sets of {suite}: {', '.join(missing)}; prepare "
            f"them with `sleuth data prepare {names} --split test --out {out}`, or name another folder with --data"
        )
    return [question for name, file in files.items() for question in (combined[name] if file is None else load(file))]
