"""Exclusions: pages, questions and answers of evaluation sets that generated questions must not use."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sleuth.corpus.datasets.merge import question_key
from sleuth.corpus.questions import read_rows
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.synthesis.cloze.lexicon import SECTION_SUFFIX

ID_FIELDS = ("weak_ids", "related_ids")  # fields with passage ids, besides supporting_ids
ARTICLE = re.compile(r"^(?:a|an|the) (?=.)")
MAX_TITLE_WORDS = 8  # maximum words of the titles searched for in a question


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Excluded passage ids, and normalized page titles, questions and answers."""

    passages: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    titles: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()

    def with_titles(self, find: Callable[[str], Passage | None]) -> "Exclusions":
        """Also exclude the other passages of the excluded pages, which state similar facts."""
        found = (find(passage_id) for passage_id in sorted(self.passages))
        return replace(self, titles=self.titles | {_title_key(each.title) for each in found if each is not None})

    def excludes(self, passage: Passage) -> bool:
        return passage.id in self.passages or (bool(self.titles) and _title_key(passage.title) in self.titles)


def read_exclusions(files: Sequence[Path], known: Sequence[Path] = ()) -> Exclusions:
    """Read the exclusions from evaluation questions; raise InputError for a file without new questions.

    A question without passage ids excludes the pages whose titles it contains. Questions of `known` files exclude
    themselves only.
    """
    passages, questions, titles, answers = set[str](), set[str](), set[str](), set[str]()
    for path in files:
        count = len(questions)
        for row in read_rows(path):
            text = question_key(row.question.question)
            questions.add(text)
            answers.update(map(answer_key, row.question.golden_answers))
            fields = [row.question.supporting_ids, *(row.extra.get(name) for name in ID_FIELDS)]
            ids = {str(each) for field in fields if isinstance(field, list | tuple) for each in field}
            passages |= ids
            if not ids:
                titles.update(_phrases(text))
        if len(questions) == count:
            raise InputError(f"--without {path} has no effect: it has no questions, or only questions of earlier files")
    questions |= {question_key(row.question.question) for path in known for row in read_rows(path)}
    return Exclusions(frozenset(passages), frozenset(questions), frozenset(titles), frozenset(answers))


def answer_key(answer: str) -> str:
    """Normalize an answer and remove its leading article."""
    return ARTICLE.sub("", question_key(answer))


def _title_key(title: str) -> str:
    """Normalize a page title without its section: "Olkusz - Notable people" belongs to Olkusz."""
    return question_key(SECTION_SUFFIX.sub("", title))


def _phrases(text: str) -> Iterator[str]:
    words = text.split()
    for start in range(len(words)):
        for end in range(start + 1, min(start + MAX_TITLE_WORDS, len(words)) + 1):
            yield " ".join(words[start:end])
