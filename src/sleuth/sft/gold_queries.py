"""Queries that one can come upon: names and titles that stand in the question or in what was read so far."""

import re
from collections.abc import Iterable, Iterator, Sequence

from sleuth.records import Passage, Question
from sleuth.reward.answers import cover_em, normalise
from sleuth.synthesis.cloze.lexicon import base_title
from sleuth.synthesis.cloze.spans import NAME, NOT_NAMES, QUOTED

OWNED = re.compile(r"['’]s\b")
OWNER = re.compile(r"['’]s$")
MOST_WORDS = 8
# A question's or a sentence's first word is written large without being a name.
OPENING = frozenset(
    """
    who whom whose what which when where why how is are was were do does did has have had can could in on at of from for
    to by with the a an and or but if as it its he his she her they their this that these those both during after before
    since while although however also name there
    """.split()  # noqa: SIM905 - read as lines
)


def asked(question: Question) -> str:
    """The question as a query."""
    return question.question.strip().rstrip("?").strip()


def ordered(question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """The passages as one would come upon them: what the question names first, then what those lead to."""
    left, taken = list(passages), list[Passage]()
    words = set(normalise(question.question).split())

    def place(passage: Passage) -> tuple[bool, bool, int]:
        likeness = len(words & set(normalise(passage.contents).split()))
        return (
            not _named(passage, _text(question, taken)),
            bool(cover_em(passage.text, question.golden_answers)),
            -likeness,
        )

    while left:
        nearest = min(left, key=place)
        left.remove(nearest)
        taken.append(nearest)
    return taken


def titles(question: Question, missing: Sequence[Passage], read: Sequence[Passage]) -> list[str]:
    """What the question or what was read calls missing passages: their titles, or those up to a comma."""
    text = OWNED.sub("", _text(question, read))
    called = (
        name
        for each in missing
        for name in (base_title(each.title), each.title, base_title(each.title).partition(",")[0])
    )
    return _distinct(name for name in called if cover_em(text, (name,)))


def names(question: Question, read: Sequence[Passage]) -> list[str]:
    """Names of the question first, then titles of what was read, then names in its text."""
    texts = [line for passage in read for line in passage.text.splitlines()]
    seen = (base_title(passage.title) for passage in read)
    return _distinct([*_names([question.question]), *seen, *_names(texts)])


def _names(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (found[1] for found in QUOTED.finditer(text))
        for found in NAME.finditer(text):
            words = OWNER.sub("", found[0]).split()
            while words and words[0].lower() in OPENING:
                words = words[1:]
            if words and not all(word in NOT_NAMES for word in words):
                yield " ".join(words)


def _text(question: Question, passages: Sequence[Passage]) -> str:
    return " ".join([question.question, *(passage.contents for passage in passages)])


def _named(passage: Passage, text: str) -> bool:
    return bool(cover_em(OWNED.sub("", text), (base_title(passage.title),)))


def _distinct(queries: Iterable[str]) -> list[str]:
    kept: dict[str, str] = {}
    for query in queries:
        if query.strip() and len(query.split()) <= MOST_WORDS:
            kept.setdefault(query.casefold(), query)
    return list(kept.values())
