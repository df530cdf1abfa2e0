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

ABSTENTION = "I don't know"  # how prompts word it
# Of a normalised answer: whole phrases, and openings after which only an explanation follows.
_ABSTENTIONS = frozenset({
    "i dont know", "i do not know", "dont know", "do not know", "not known", "unknown", "unclear", "undetermined",
    "unanswerable", "not answerable", "no answer", "no idea", "i have no idea", "not sure", "i am not sure",
    "im not sure", "not found", "not available", "not given", "not mentioned", "not provided", "not specified",
    "not stated", "cannot answer", "cannot be answered", "cannot be determined", "cannot be known",
    "cannot determine", "impossible to know", "impossible to say", "impossible to tell", "it is unknown",
    "it is not known", "it is unclear", "answer is unknown", "answer is not known", "answer unknown",
    "insufficient information", "not enough information", "no information", "no information available",
    "no information found", "no relevant information",
})  # fmt: skip
_OPENING = re.compile(
    r"(?:sorry )?(?:"
    r"(?:i )?(?:dont|do not) know (?:answer|this|that|it|for sure|from|based on|because|since)\b"
    r"|(?:i|we) (?:cannot|cant|can not|could not|couldnt|am unable to|was unable to) "
    r"(?:answer|determine|find|know|say|tell)\b"
    r"|(?:there is |there was )?(?:no|not enough|insufficient) (?:information|evidence|data)\b"
    r"|(?:answer|information|question) (?:to this question )?(?:is not|was not|cannot be|could not be|can not be) "
    r"(?:answered|available|contained|determined|found|given|in|known|mentioned|provided|specified|stated)\b"
    r"|(?:documents|passages|search results|sources|texts|they) (?:do not|dont|did not|didnt) "
    r"(?:answer|contain|give|include|mention|provide|say|specify|state|tell)\b)"
)
_CONTINUES = re.compile(r"\b(?:but|however|although)\b")  # a guess follows


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


def is_abstention(answer: str | None) -> bool:
    """Whether an answer says that the answer is not known, such as "I don't know"; False without an answer."""
    text = normalise((answer or "").replace("\u2019", "'"))
    return text in _ABSTENTIONS or (_OPENING.match(text) is not None and _CONTINUES.search(text) is None)


def abstains(answer: str | None, golds: Sequence[str]) -> bool:
    """Whether an answer is an abstention and not, by chance, a gold answer."""
    return is_abstention(answer) and not exact_match(answer, golds)


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
