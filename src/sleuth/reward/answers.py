"""How well an answer matches the gold answers: exact match, token F1, cover exact match."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

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


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 when the normalised answer equals a normalised gold answer."""
    if answer is None:
        return 0.0
    said = normalise(answer)
    return float(any(said == normalise(gold) for gold in golds))


def f1(answer: str | None, golds: Sequence[str]) -> float:
    """The harmonic mean of word precision and recall against the best matching gold answer."""
    if answer is None:
        return 0.0
    said = normalise(answer).split()
    return max((_overlap(said, normalise(gold).split()) for gold in golds), default=0.0)


def cover_em(answer: str | None, golds: Sequence[str]) -> float:
    """1 when a gold answer stands in the answer as whole words."""
    if answer is None:
        return 0.0
    # The spaces around both make it whole words, and keep a gold of nothing but articles out of every text.
    said = f" {normalise(answer)} "
    return float(any(f" {normalise(gold)} " in said for gold in golds))


def _overlap(said: list[str], gold: list[str]) -> float:
    if not said or not gold:
        return float(said == gold)
    shared = (Counter(said) & Counter(gold)).total()
    return 2 * shared / (len(said) + len(gold))


ANSWERS: dict[str, AnswerMetric] = {"em": exact_match, "f1": f1, "cover_em": cover_em}
