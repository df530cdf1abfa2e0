"""What is asked: suites by name or files of questions, all of them or a sample drawn alike from every set."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sleuth.corpus.questions import load
from sleuth.errors import InputError
from sleuth.records import Question
from sleuth.reward.answers import wordless

# The sets of Search-R1 with their sizes, in the order of its tables (arXiv 2503.09516).
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
TOGETHER = "questions.jsonl"  # as sleuth data prepare writes all that it is given
ALONE = (".test.jsonl", ".test.jsonl.gz", "/questions.jsonl")
Sets = dict[str, list[Question]]


@dataclass(frozen=True, slots=True)
class Sample:
    """How many questions were drawn of how many, by which seed."""

    limit: int
    of: int
    seed: int

    def sentence(self) -> str:
        return (
            f"A sample: {self.limit:,} of {self.of:,} questions, the same number of each set as far as it has them, "
            f"drawn by seed {self.seed}."
        )


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions of an evaluation in order, and what a reader of its figures must know of them.

    `whole` are those of the suites, of which a sample was drawn or none.
    """

    questions: tuple[Question, ...]
    sample: Sample | None = None
    notes: tuple[str, ...] = ()
    whole: tuple[Question, ...] = ()


def gathered(suites: Sequence[str], folder: Path, limit: int | None = None, seed: int = 0) -> Asking:
    """The questions of the suites, each a name or a file; with a limit so many of them."""
    questions = [question for suite in suites for question in _asked(suite, folder)]
    seen: set[tuple[str, str]] = set()
    for question in questions:
        if (key := (question.data_source, question.id)) in seen:
            raise InputError(
                f"the question {question.id!r} of the set {question.data_source!r} comes twice; name each file once, "
                "and give files of different sets another data_source"
            )
        seen.add(key)
    notes = tuple(note for suite in suites if suite in SUITES for note in _short_of(suite, questions))
    whole = asked = tuple(questions)
    sample = None
    if limit is not None and limit < len(whole):
        asked, sample = tuple(drawn(whole, limit, seed)), Sample(limit, len(whole), seed)
    return Asking(asked, sample, (*notes, *filter(None, [wordless(asked)])), whole)


def drawn(questions: Sequence[Question], limit: int, seed: int) -> list[Question]:
    """So many questions in their order, from each set as many as from any other that has them.

    The mean over the sets is what is reported, so a small set needs as many as a large one. A smaller sample is part of
    a larger one of the same seed.
    """
    sets = by_set(questions)
    if limit < len(sets):
        raise InputError(f"--limit {limit} is less than one question of each of the {len(sets)} sets; raise it")
    chosen: set[tuple[str, str]] = set()
    for name, share in _shares({name: len(each) for name, each in sets.items()}, limit).items():
        order = list(sets[name])
        random.Random(f"{seed}/{name}").shuffle(order)
        chosen |= {(name, question.id) for question in order[:share]}
    return [question for question in questions if (question.data_source, question.id) in chosen]


def by_set(questions: Sequence[Question]) -> Sets:
    """The questions of each set, in the order in which the sets first come."""
    sets: Sets = {}
    for question in questions:
        sets.setdefault(question.data_source, []).append(question)
    return sets


def _shares(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """Equal shares; what a small set cannot give, the others do."""
    shares: dict[str, int] = {}
    for place, name in enumerate(sorted(sizes, key=lambda each: sizes[each])):
        shares[name] = min(sizes[name], (limit - sum(shares.values())) // (len(sizes) - place))
    return shares


def _asked(suite: str, folder: Path) -> list[Question]:
    """The questions of a file, or of the sets of a suite in their order."""
    if suite in SUITES:
        return [question for part in _prepared(suite, folder).values() for question in part]
    if not Path(suite).exists():
        raise InputError(
            f"--suite {suite} is neither a file nor a suite; expected {', '.join(SUITES)}, or a file of questions"
        )
    return load(Path(suite))


def _prepared(suite: str, folder: Path) -> Sets:
    """The sets of a suite: in one file of the folder, or each in its own; those missing are named together."""
    together = by_set(load(folder / TOGETHER)) if (folder / TOGETHER).is_file() else {}
    files = {
        name: next((file for end in ALONE if (file := folder / f"{name}{end}").is_file()), None)
        for name in SUITES[suite]
    }
    if missing := [name for name, file in files.items() if file is None and name not in together]:
        raise InputError(
            f"{folder} lacks {len(missing)} of the {len(files)} sets of {suite}: {', '.join(missing)}; make them with: "
            f"{_command(missing, folder)}, or name another folder with --data"
        )
    return {name: together[name] if file is None else load(file) for name, file in files.items()}


def _command(missing: Sequence[str], folder: Path) -> str:
    """What makes the missing sets; a folder that is there is not written again."""
    if folder.exists():
        return f"sleuth data prepare NAME --split test --out {folder}/NAME"
    return f"sleuth data prepare {' '.join(missing)} --split test --out {folder}"


def _short_of(suite: str, questions: Sequence[Question]) -> list[str]:
    """Sets that do not have the number of questions of the protocol."""
    found = {name: len(each) for name, each in by_set(questions).items()}
    return [
        f"{name} has {found.get(name, 0):,} questions, and {size:,} in the protocol of {suite}."
        for name, size in SUITES[suite].items()
        if found.get(name, 0) != size
    ]
