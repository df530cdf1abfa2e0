"""A question in the making, and what every one must be: clean, short enough, and silent about its answer."""

import re
import string
from dataclasses import dataclass
from random import Random

from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.nouns import Kind

WORDS = range(4, 33)
PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = frozenset({"a", "an", "the"})
ANSWER_LETTERS = 70
UNCLEAN = re.compile(
    r"\b(?:and|or|the|an?|both|No|St|Dr|Mr)\?$|[;:\[\]{}()]|\b[Tt]he of\b|\s,|--|^\W*$|"
    r"\b(located|born|based|from|died|is|was) \1\b|"
    r"\b(?:the|a|an|his|her|its|their|which \w+) (?:who|what|which|whom|how|when|where)\b"
)
SMALL_WORDS = frozenset(
    """
    a an the of in on at by for from to with and or is was are were be been did does do has have had who whom whose
    which what when where how many much year date it its his her he she they their that this as into
    """.split()  # noqa: SIM905 - read as lines
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A question about a passage; `name` is what it calls the subject.

    `asks` are its wordings with {x} for the subject, where it has several; `calls` are words for its answer with {x}.
    """

    text: str
    answer: str
    kind: Kind
    form: str
    name: str
    aliases: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    relation: Relation | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """The golden answers, each once."""
        return tuple(dict.fromkeys((self.answer, *self.aliases)))


def good(draft: Draft) -> bool:
    """Whether a draft can be asked: it says enough, and neither its answer nor half a quotation."""
    text = draft.text
    if UNCLEAN.search(text) or text.count('"') % 2 or len(text.split()) not in WORDS:
        return False
    if not 1 <= len(draft.answer) <= ANSWER_LETTERS or not any(map(str.isalnum, draft.answer)):
        return False
    asked = measured(text)
    if any(holds(asked, measured(answer)) for answer in draft.answers):
        return False
    if holds(measured(draft.answer), measured(draft.name)):
        return False
    return len(set(asked.split()) - SMALL_WORDS) >= 2


def measured(text: str) -> str:
    """A text as exact match reads it: small, without punctuation and articles (the reward's own rule)."""
    return " ".join(word for word in text.lower().translate(PUNCTUATION).split() if word not in ARTICLES)


def holds(text: str, words: str) -> bool:
    """Whether words stand in a text, both as they are measured."""
    return f" {words} " in f" {text} "


def punctuated(text: str) -> str:
    """A question as a person types it."""
    text = " ".join(text.split()).rstrip(" ,.")
    return f"{text[:1].upper()}{text[1:]}?"


def typed(text: str, dice: Random) -> str:
    """A question as it is, or one time in three as it would be typed into a search box."""
    return text.rstrip("?").lower() if dice.random() < 1 / 3 else text


def sentence(text: str) -> str:
    """A question with a large letter first."""
    return text[:1].upper() + text[1:]
