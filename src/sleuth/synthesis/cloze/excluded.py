"""What must not be asked about: the pages, the questions and the answers of sets that are measured on."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sleuth.corpus.datasets.merge import key
from sleuth.corpus.datasets.rows import read
from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.synthesis.cloze.lexicon import SECTION

NAMING = ("weak_ids", "related_ids")  # beside supporting_ids, in files of ours
ARTICLE = re.compile(r"^(?:a|an|the) (?=.)")
LONGEST = 8  # words of a title that is looked for in a question


@dataclass(frozen=True, slots=True)
class Excluded:
    """Ids of passages and titles of pages, and questions and answers, as `key` writes them."""

    passages: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    titles: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()

    def with_titles(self, find: Callable[[str], Passage | None]) -> "Excluded":
        """The same with the titles of its passages: another passage of the same page tells much the same."""
        found = (find(name) for name in sorted(self.passages))
        return replace(self, titles=self.titles | {title_key(each.title) for each in found if each is not None})

    def holds(self, passage: Passage) -> bool:
        """Whether a passage is one that is left out, or of the same page as one."""
        return passage.id in self.passages or (bool(self.titles) and title_key(passage.title) in self.titles)


def excluded(files: Sequence[Path]) -> Excluded:
    """What the questions of files name: their passages, themselves and their answers; no questions is an InputError.

    For a question that names no passage, the titles are those that stand in its words.
    """
    passages: set[str] = set()
    questions: set[str] = set()
    titles: set[str] = set()
    answers: set[str] = set()
    for path in files:
        count = len(questions)
        for row in read(path):
            asked = key(row.question.question)
            questions.add(asked)
            answers.update(map(answer_key, row.question.golden_answers))
            named = [row.question.supporting_ids, *(row.kept.get(name) for name in NAMING)]
            ids = {str(each) for some in named if isinstance(some, list | tuple) for each in some}
            passages |= ids
            if not ids:
                titles.update(_phrases(asked))
        if len(questions) == count:
            raise InputError(f"{path} holds no questions that earlier files do not, so --without it has no effect")
    return Excluded(frozenset(passages), frozenset(questions), frozenset(titles), frozenset(answers))


def title_key(title: str) -> str:
    """What the titles of all passages of a page share: "Olkusz - Notable people" is of the page Olkusz."""
    return key(SECTION.sub("", title))


def answer_key(answer: str) -> str:
    """What two answers share that are the same but for an article, as `key` has it."""
    return ARTICLE.sub("", key(answer))


def _phrases(text: str) -> Iterator[str]:
    """All that a text says in up to so many words one after the other."""
    words = text.split()
    for first in range(len(words)):
        for end in range(first + 1, min(first + LONGEST, len(words)) + 1):
            yield " ".join(words[first:end])
