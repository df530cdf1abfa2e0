"""How well an answer matches the gold answers: exact match, token F1, cover exact match."""

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
# Gold answers are held against all that was found, and the samples of a group find much the same.
REMEMBERED = 8192


@lru_cache(REMEMBERED)
def normalise(text: str) -> str:
    """Lower case without punctuation and articles, words separated by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compared(text: str) -> str:
    """What answers are matched by: the normalised text, or the text as written where normalising leaves nothing.

    Gold answers such as "A" or "---" would otherwise make an empty answer right.
    """
    return normalise(text) or " ".join(text.lower().split())


def wordless(questions: Iterable[Question]) -> str | None:
    """What to say where gold answers are nothing but articles and punctuation; None where no answer is."""
    count = sum(not normalise(gold) for question in questions for gold in question.golden_answers)
    if not count:
        return None
    some = "1 gold answer is" if count == 1 else f"{count:,} gold answers are"
    return f"{some} nothing but articles and punctuation, and matched only as written."


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 when the normalised answer equals a normalised gold answer."""
    if answer is None:
        return 0.0
    said = compared(answer)
    return float(bool(said) and any(said == compared(gold) for gold in golds))


def f1(answer: str | None, golds: Sequence[str]) -> float:
    """The harmonic mean of word precision and recall against the best matching gold answer."""
    if answer is None:
        return 0.0
    said = compared(answer).split()
    return max((_overlap(said, compared(gold).split()) for gold in golds), default=0.0)


def cover_em(answer: str | None, golds: Sequence[str]) -> float:
    """1 when a gold answer stands in the answer as whole words."""
    if answer is None:
        return 0.0
    # The spaces around both make it whole words.
    said = f" {compared(answer)} "
    return float(any(f" {sought} " in said for gold in golds if (sought := compared(gold))))


def _overlap(said: list[str], gold: list[str]) -> float:
    if not said or not gold:
        return 0.0
    shared = (Counter(said) & Counter(gold)).total()
    return 2 * shared / (len(said) + len(gold))


ANSWERS: dict[str, AnswerMetric] = {"em": exact_match, "f1": f1, "cover_em": cover_em}
