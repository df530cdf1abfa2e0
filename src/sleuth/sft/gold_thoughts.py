"""Thoughts of gold demonstrations: facts found, the next search, and explanations of comparisons.

An explanation states both values before the answer, so that the model compares adjacent values instead of distant ones.
"""

import operator
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from sleuth.corpus.chunks import sentences
from sleuth.records import Passage, Question
from sleuth.reward.answers import cover_em, normalise
from sleuth.synthesis.cloze.english import MONTHS, Kind, is_earlier, nationalities_differ
from sleuth.synthesis.cloze.facts import Subject, extract_subject
from sleuth.synthesis.cloze.lexicon import Lexicon, base_title
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.topic import parse_topic

MAX_QUOTE_WORDS = 50
MAX_CODE_CHARS = 3  # length of answers that may be codes: NO, ME, LAD
FIRST_NAMED = (
    "I need to find out about {title}.",
    "The question is about {title}, so I look that up first.",
    "To answer this I start with {title}.",
    "First I should read about {title}.",
)
FIRST_UNNAMED = (
    "I do not know this, so I search for it.",
    "I should look this up.",
    "Let me search for what is asked.",
    "I need to find a passage that tells this.",
)
NEXT_NAMED = (
    "Now I need to find out about {title}.",
    "Next I look up {title}.",
    "I look up {title} too.",
    "So I search for {title} now.",
)
NEXT_UNNAMED = (
    "That is not all I need, so I search again.",
    "There is more to find out.",
    "I have to look further.",
)
QUOTE = (
    "The passage about {title} says: {sentence}",
    "I read about {title}: {sentence}",
    "From what I found on {title}: {sentence}",
    "About {title} it says: {sentence}",
)
ANSWER = (
    "So the answer is {answer}.",
    "That makes the answer {answer}.",
    "This answers the question: {answer}.",
    "Therefore it is {answer}.",
)
GUESS = (
    "This does not tell it. I think it is {answer}.",
    "None of this says it, so I guess: {answer}.",
    "I did not find it. Most likely it is {answer}.",
    "It is not said here. My guess is {answer}.",
)
ABSTAIN = (
    "The documents do not say this.",
    "None of the passages answers the question.",
    "I did not find it, so I do not know.",
    "The search finds nothing that answers this.",
)
SMALLER = re.compile(r"\b(?:first|earlier|earliest|older|oldest|elder|before|fewer|smaller|less)\b")
LARGER = re.compile(r"\b(?:later|latest|last|younger|youngest|recently|newer|after|more|larger|bigger|longer)\b")
MAKER = re.compile(r"\b(?:director|composer|performer|author|writer|producer|singer)s?\b")
NO_LEXICON = Lexicon()
WITH_ARTICLE = ("United ", "Netherlands", "Philippines", "Czech Republic")


def first_search(title: str | None, rng: random.Random) -> str:
    """Return the thought before the first search, for a title or for the question itself."""
    return rng.choice(FIRST_UNNAMED) if title is None else rng.choice(FIRST_NAMED).format(title=title)


def next_search(title: str | None, rng: random.Random) -> str:
    """Return the thought before a later search."""
    return rng.choice(NEXT_UNNAMED) if title is None else rng.choice(NEXT_NAMED).format(title=title)


def conclude(answer: str, rng: random.Random, templates: Sequence[str] = ANSWER) -> str:
    """Return the thought before an answer."""
    text = rng.choice(templates).format(answer=answer.rstrip("."))
    return text[:-1] if answer.endswith(("?", "!")) else text


def quote(passage: Passage, targets: Sequence[str], rng: random.Random) -> str:
    """Quote the most relevant sentence of a passage."""
    return rng.choice(QUOTE).format(title=passage.title, sentence=relevant_sentence(passage.text, targets))


def relevant_sentence(text: str, targets: Sequence[str]) -> str:
    """Return the first sentence that contains a target, otherwise the one with the largest word overlap."""
    found = [sentence.strip() for line in text.splitlines() for sentence in sentences(line) if sentence.strip()]
    matching = (sentence for target in targets for sentence in found if cover_em(sentence, (target,)))
    words = set(normalise(" ".join(targets)).split())
    best = next(matching, None)
    if best is None:
        best = max(found, key=lambda each: len(words & set(normalise(each).split())), default="")
    split = best.split()
    return " ".join(split[:MAX_QUOTE_WORDS]) + (" ..." if len(split) > MAX_QUOTE_WORDS else "")


def answer_as_written(golds: Sequence[str], texts: Iterable[str]) -> str:
    """Return the gold answer found in a text, as spelled in the text; otherwise the first gold answer."""
    searched = list(texts)
    # Short codes such as it (Italian), no (Norway) and me (Maine) are also common words.
    exact = [
        (gold, 0)
        for gold in golds
        if gold == golds[0] or not (len(gold) <= MAX_CODE_CHARS and gold.isalpha() and gold.islower())
    ]
    any_case = [(gold, re.IGNORECASE) for gold in golds if len(gold) > MAX_CODE_CHARS]
    for gold, flags in exact + any_case:
        whole_word = re.compile(rf"(?<!\w){re.escape(gold)}(?!\w)", flags)
        if found := next(filter(None, map(whole_word.search, searched)), None):
            return found[0]
    return golds[0]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: `subject` holds the fact, `named` is the passage that the question names."""

    subject: Subject
    named: Passage

    def value(self, relation: Relation) -> str:
        return self.subject.facts[relation].value

    @property
    def title(self) -> str:
        return self.subject.topic.title

    @property
    def label(self) -> str:
        """The subject's title, followed by the work in parentheses if the question names the work instead."""
        is_named = self.subject.topic.passage is self.named
        return self.title if is_named else f"{self.title} ({base_title(self.named.title)})"

    def is_answer(self, question: Question) -> bool:
        titles = (self.named.title, base_title(self.named.title))
        return any(cover_em(title, question.golden_answers) for title in titles)


@dataclass(frozen=True, slots=True)
class Ordering:
    """A comparison by order; `statement` describes each side, `verdict` the side with the smaller value."""

    words: re.Pattern[str]
    relation: Relation
    statement: str
    verdict: str
    is_smaller: Callable[[str, str], bool | None]

    def explain(self, question: Question, text: str, one: Side, other: Side) -> str | None:
        smaller, larger = bool(SMALLER.search(text)), bool(LARGER.search(text))
        is_first = self.is_smaller(one.value(self.relation), other.value(self.relation))
        if is_first is None or smaller is larger:
            return None
        first, second = (one, other) if is_first else (other, one)
        right, wrong = (first, second) if smaller else (second, first)
        if not right.is_answer(question) or wrong.is_answer(question):
            return None
        statements = (
            f"{side.label} {self.statement.format(value=_with_preposition(side.value(self.relation)))}"
            for side in (one, other)
        )
        return f"{', and '.join(statements)}: {first.title} {self.verdict}."


@dataclass(frozen=True, slots=True)
class Equality:
    """A yes/no comparison of two values; `differ` returns whether they certainly differ."""

    words: re.Pattern[str]
    relation: Relation
    statement: str
    differ: Callable[[str, str], bool]

    def explain(self, question: Question, _: str, one: Side, other: Side) -> str | None:
        values = [side.value(self.relation) for side in (one, other)]
        equal = values[0] == values[1]
        answer = normalise(question.golden_answers[0])
        if answer != ("yes" if equal else "no") or not (equal or self.differ(*values)):
            return None
        named = (f"the {value}" if value.startswith(WITH_ARTICLE) else value for value in values)
        sides = zip((one, other), named, strict=True)
        statements = (f"{side.label} {self.statement.format(value=value)}" for side, value in sides)
        return f"{', and '.join(statements)}: that is {'the same' if equal else 'not the same'}."


def explain_comparison(question: Question, passages: Sequence[Passage]) -> str | None:
    """State the facts of both sides of a comparison if they imply the gold answer; otherwise return None."""
    named = [passage for passage in passages if cover_em(question.question, (base_title(passage.title),))]
    named.sort(key=lambda passage: question.question.lower().find(base_title(passage.title).lower()))
    # Titles may contain words such as death or first.
    text = question.question.lower()
    for passage in sorted(named, key=lambda each: -len(each.title)):
        text = text.replace(base_title(passage.title).lower(), "")
    topics = (parse_topic(passage, NO_LEXICON) for passage in passages)
    subjects = [extract_subject(topic, NO_LEXICON) for topic in topics if topic is not None]
    for comparison in COMPARISONS:
        if comparison.words.search(text):
            of_makers = comparison.relation is not Relation.DIRECTOR and bool(MAKER.search(text))
            for one, other in _pairs(subjects, comparison.relation, of_makers, named):
                if explanation := comparison.explain(question, text, one, other):
                    return explanation
    return None


def _pairs(
    subjects: Sequence[Subject], relation: Relation, of_makers: bool, named: Sequence[Passage]
) -> list[tuple[Side, Side]]:
    """Return pairs of subjects with the fact: topics named in the question, or makers of the works it names."""
    known = [subject for subject in subjects if relation in subject.facts]
    sides = [
        Side(subject, passage)
        for passage in named
        for subject in known
        if (_is_maker(subject, passage) if of_makers else subject.topic.passage is passage)
    ]
    return [(one, other) for one, other in combinations(sides, 2) if one.named.title != other.named.title]


def _is_maker(subject: Subject, work: Passage) -> bool:
    topic = subject.topic
    return topic.kind is Kind.PERSON and topic.passage is not work and bool(cover_em(work.text, (topic.title,)))


def _with_preposition(value: str) -> str:
    """Add the preposition to a date; return a number unchanged."""
    if not any(month in value for month in MONTHS):
        return f"in {value}" if re.fullmatch(r"\d{4}", value) else value
    return f"on {value}" if re.search(r"\b\d{1,2}\b", value) else f"in {value}"


def _is_fewer(one: str, other: str) -> bool | None:
    first, second = (value.replace(",", "") for value in (one, other))
    if first == second or not (first.isdecimal() and second.isdecimal()):
        return None
    return int(first) < int(second)


COMPARISONS: tuple[Ordering | Equality, ...] = (
    Ordering(re.compile(r"\b(?:died?|death)\b"), Relation.DIED, "died {value}", "died first", is_earlier),
    Ordering(
        re.compile(r"\b(?:born|older|younger|oldest|youngest|elder)\b"),
        Relation.BORN, "was born {value}", "was born first", is_earlier,
    ),
    Ordering(
        re.compile(r"\b(?:released?|came out|come out|published|premiered)\b"),
        Relation.RELEASED, "came out {value}", "came out first", is_earlier,
    ),
    Ordering(
        re.compile(r"\b(?:founded|established|formed|started|opened|older)\b"),
        Relation.FOUNDED, "was founded {value}", "was founded first", is_earlier,
    ),
    Ordering(
        re.compile(r"\b(?:inhabitants|population|populated)\b"),
        Relation.POPULATION, "has {value} inhabitants", "has fewer", _is_fewer,
    ),
    Equality(
        re.compile(r"\b(?:nationality|country|from)\b"), Relation.NATIONALITY, "is {value}", nationalities_differ
    ),
    Equality(re.compile(r"\b(?:country|nation)\b"), Relation.COUNTRY, "is in {value}", nationalities_differ),
    Equality(
        re.compile(r"\bsame director\b|\bdirected by the same\b"),
        Relation.DIRECTOR, "was directed by {value}", operator.ne,
    ),
)  # fmt: skip
