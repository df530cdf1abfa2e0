"""Answer metrics: exact match, token F1 and cover exact match against the gold answers."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from sleuth.records import Question

AnswerMetric = Callable[[str | None, Sequence[str]], float]

# ASCII punctuation only, as in SQuAD's metric and every published Search-R1 figure.
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(8192)  # the samples of a group retrieve mostly the same passages
def normalise(text: str) -> str:
    """Lower-case a text, remove punctuation and articles, and collapse white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def comparable(text: str) -> str:
    """Return the normalised text, or the original text if normalisation leaves nothing.

    Otherwise, an empty answer would match gold answers such as "A" or "---".
    """
    return normalise(text) or " ".join(text.lower().split())


def warn_wordless(questions: Iterable[Question]) -> str | None:
    """Return a warning if gold answers consist of articles and punctuation only, else None."""
    count = sum(not normalise(gold) for question in questions for gold in question.golden_answers)
    if not count:
        return None
    subject = "1 gold answer consists" if count == 1 else f"{count:,} gold answers consist"
    return f"{subject} of articles and punctuation only, and must be matched as written."


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """Return 1 if the normalised answer equals a normalised gold answer, else 0."""
    text = comparable(answer) if answer is not None else ""
    return float(bool(text) and any(text == comparable(gold) for gold in golds))


def f1(answer: str | None, golds: Sequence[str]) -> float:
    """Return the word F1 against the best matching gold answer."""
    words = comparable(answer).split() if answer is not None else []
    return max((_word_f1(words, comparable(gold).split()) for gold in golds), default=0.0)


def cover_em(answer: str | None, golds: Sequence[str]) -> float:
    """Return 1 if the answer contains a gold answer as whole words, else 0."""
    if answer is None:
        return 0.0
    # Spaces around both restrict the match to whole words.
    text = f" {comparable(answer)} "
    return float(any(f" {words} " in text for gold in golds if (words := comparable(gold))))


def _word_f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return 0.0
    shared = (Counter(words) & Counter(gold)).total()
    return 2 * shared / (len(words) + len(gold))


ANSWERS: dict[str, AnswerMetric] = {"em": exact_match, "f1": f1, "cover_em": cover_em}
