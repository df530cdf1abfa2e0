"""Why a comparison comes out as it does: what gold passages say of the two that are compared, side by side.

A model that states both values before it answers compares two that stand next to each other, not far apart in passages.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sleuth.records import Passage, Question
from sleuth.reward.answers import cover_em, normalise
from sleuth.synthesis.cloze.english import MONTHS, Kind, is_earlier, nationalities_differ
from sleuth.synthesis.cloze.facts import Subject, extract_subject
from sleuth.synthesis.cloze.lexicon import Lexicon, base_title
from sleuth.synthesis.cloze.relations import Relation
from sleuth.synthesis.cloze.topic import Topic, parse_topic

LEAST = re.compile(r"\b(?:first|earlier|earliest|older|oldest|elder|before|fewer|smaller|less)\b")
MOST = re.compile(r"\b(?:later|latest|last|younger|youngest|recently|newer|after|more|larger|bigger|longer)\b")
MADE = re.compile(r"\b(?:director|composer|performer|author|writer|producer|singer)s?\b")
NO_LEXICON = Lexicon()


@dataclass(frozen=True, slots=True)
class Side:
    """One of two that are compared: `who` has the fact, `what` is asked about, which may be a work of theirs."""

    who: Subject
    what: Passage

    def value(self, relation: Relation) -> str:
        return self.who.facts[relation].value

    @property
    def name(self) -> str:
        return self.who.topic.title

    @property
    def called(self) -> str:
        """The name, and of what where that is asked about."""
        return self.name if self.who.topic.passage is self.what else f"{self.name} ({base_title(self.what.title)})"

    def answers(self, question: Question) -> bool:
        titles = (self.what.title, base_title(self.what.title))
        return any(cover_em(title, question.golden_answers) for title in titles)


@dataclass(frozen=True, slots=True)
class Contrast:
    """What is asked by which words: `said` is of each side, `concluded` of the one whose value comes first."""

    words: re.Pattern[str]
    relation: Relation
    said: str
    concluded: str
    before: Callable[[str, str], bool | None]


@dataclass(frozen=True, slots=True)
class Kinship:
    """What two are asked to share: `said` is of each side, `differ` tells whether two values surely do."""

    words: re.Pattern[str]
    relation: Relation
    said: str
    differ: Callable[[str, str], bool]


def reason(question: Question, passages: Sequence[Passage]) -> str | None:
    """What the passages say of the two that a question compares, where that leads to its answer; else None."""
    named = [passage for passage in passages if cover_em(question.question, (base_title(passage.title),))]
    named.sort(key=lambda passage: question.question.lower().find(base_title(passage.title).lower()))
    asked = _without_names(question.question.lower(), named)
    subjects = [extract_subject(about, NO_LEXICON) for about in _topics(passages)]
    told: list[str | None] = []
    for contrast in CONTRASTS:
        if contrast.words.search(asked):
            pairs = _pairs(subjects, contrast.relation, bool(MADE.search(asked)), named)
            told += [_ordered(question, *pair, contrast, asked) for pair in pairs]
    for kinship in KINSHIPS:
        if kinship.words.search(asked):
            of_makers = kinship.relation is not Relation.DIRECTOR and bool(MADE.search(asked))
            pairs = _pairs(subjects, kinship.relation, of_makers, named)
            told += [_same(question, *pair, kinship) for pair in pairs]
    return next(filter(None, told), None)


def _without_names(asked: str, named: Sequence[Passage]) -> str:
    """A question without what it compares: the title of a film may speak of death, or of the first."""
    for passage in sorted(named, key=lambda each: -len(each.title)):
        asked = asked.replace(base_title(passage.title).lower(), "")
    return asked


def _topics(passages: Sequence[Passage]) -> Iterator[Topic]:
    for passage in passages:
        about = parse_topic(passage, NO_LEXICON)
        if about is not None:
            yield about


def _pairs(
    subjects: Sequence[Subject], relation: Relation, of_makers: bool, named: Sequence[Passage]
) -> list[tuple[Side, Side]]:
    """Those with the fact that the question names, two by two: makers of what it names, where it asks for them."""
    having = [each for each in subjects if relation in each.facts]
    if of_makers:
        sides = [Side(who, what) for what in named for who in having if _made(what, who)]
    else:
        sides = [Side(who, what) for what in named for who in having if who.topic.passage is what]
    return [(one, other) for one, other in combinations(sides, 2) if one.what.title != other.what.title]


def _made(work: Passage, maker: Subject) -> bool:
    """Whether a passage names a person who has one of their own."""
    about = maker.topic
    return about.kind is Kind.PERSON and about.passage is not work and bool(cover_em(work.text, (about.title,)))


def _ordered(question: Question, one: Side, other: Side, contrast: Contrast, asked: str) -> str | None:
    relation = contrast.relation
    least, most = bool(LEAST.search(asked)), bool(MOST.search(asked))
    before = contrast.before(one.value(relation), other.value(relation))
    if before is None or least is most:
        return None
    first, second = (one, other) if before else (other, one)
    right, wrong = (first, second) if least else (second, first)
    if not right.answers(question) or wrong.answers(question):
        return None
    told = (f"{side.called} {contrast.said.format(value=_behind(side.value(relation)))}" for side in (one, other))
    return f"{', and '.join(told)}: {first.name} {contrast.concluded}."


def _same(question: Question, one: Side, other: Side, kinship: Kinship) -> str | None:
    mine, yours = one.value(kinship.relation), other.value(kinship.relation)
    answer, agree = normalise(question.golden_answers[0]), mine == yours
    if answer != ("yes" if agree else "no") or not (agree or kinship.differ(mine, yours)):
        return None
    told = (
        f"{side.called} {kinship.said.format(value=_article(side.value(kinship.relation)))}" for side in (one, other)
    )
    return f"{', and '.join(told)}: that is {'the same' if agree else 'not the same'}."


def _article(value: str) -> str:
    return f"the {value}" if value.startswith(("United ", "Netherlands", "Philippines", "Czech Republic")) else value


def _behind(value: str) -> str:
    """A date with its preposition; a number as it stands."""
    if not any(month in value for month in MONTHS):
        return f"in {value}" if re.fullmatch(r"\d{4}", value) else value
    return f"on {value}" if re.search(r"\b\d{1,2}\b", value) else f"in {value}"


def _fewer(one: str, other: str) -> bool | None:
    mine, yours = (value.replace(",", "") for value in (one, other))
    if mine == yours or not (mine.isdecimal() and yours.isdecimal()):
        return None
    return int(mine) < int(yours)


CONTRASTS = (
    Contrast(re.compile(r"\b(?:died?|death)\b"), Relation.DIED, "died {value}", "died first", is_earlier),
    Contrast(
        re.compile(r"\b(?:born|older|younger|oldest|youngest|elder)\b"),
        Relation.BORN, "was born {value}", "was born first", is_earlier,
    ),
    Contrast(
        re.compile(r"\b(?:released?|came out|come out|published|premiered)\b"),
        Relation.RELEASED, "came out {value}", "came out first", is_earlier,
    ),
    Contrast(
        re.compile(r"\b(?:founded|established|formed|started|opened|older)\b"),
        Relation.FOUNDED, "was founded {value}", "was founded first", is_earlier,
    ),
    Contrast(
        re.compile(r"\b(?:inhabitants|population|populated)\b"),
        Relation.POPULATION, "has {value} inhabitants", "has fewer", _fewer,
    ),
)  # fmt: skip
KINSHIPS = (
    Kinship(re.compile(r"\b(?:nationality|country|from)\b"), Relation.NATIONALITY, "is {value}", nationalities_differ),
    Kinship(re.compile(r"\b(?:country|nation)\b"), Relation.COUNTRY, "is in {value}", nationalities_differ),
    Kinship(
        re.compile(r"\bsame director\b|\bdirected by the same\b"),
        Relation.DIRECTOR,
        "was directed by {value}",
        operator.ne,
    ),
)
