"""Questions about entries: which term fits a description, its default value, and the version that introduced it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.corpus.chunks import sentences
from sleuth.synthesis.documents import in_scope
from sleuth.synthesis.rules.english import predicate
from sleuth.synthesis.rules.entries import Entry
from sleuth.synthesis.vocabulary import is_code, word_set, words

DEFAULT = re.compile(
    r"(?:^|[.;(]\s?|\b(?:it|which|this|option|parameter|and|that)\s)(?:the\s)?(?:default(?:\svalue)?\sis|defaults\sto|"
    r"default:)\s(?P<value>\S[^.;,()]{0,50}(?:\.\d[^.;,()]{0,20})?)",
    re.IGNORECASE,
)
NEW = re.compile(
    r"^(?:New in|Added in|Introduced in) (?:version )?(?P<version>[A-Za-z]{0,12}\s?\d[\w.]*?)[.:]?(?:\s|$)"
)
DEPRECATED = re.compile(r"^Deprecated since (?:version )?(?P<version>\d[\w.]*?)[.:,]?(?:\s|$)")
MAX_VALUE = 4  # words
VALUE_MARKS = "\"'“”‘’` "
NUMBER_WORDS = word_set(
    """
    zero one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty sixty ninety hundred
    """
)
STATES = word_set("true false none null on off yes no empty disabled enabled infinity unlimited")


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is checked: `topic` is what must be unique, so that only one answer is right."""

    question: str
    answers: tuple[str, ...]
    quotes: tuple[str, ...]
    kind: str
    topic: str


def entry_drafts(entry: Entry, scope: str | None) -> Iterator[Draft]:
    """Yield the questions about an entry of a document named `scope`."""
    yield from _which(entry, scope)
    yield from _default(entry, scope)
    yield from _version(entry, scope)


def value_answers(text: str) -> tuple[str, ...] | None:
    """Return the ways to write a value: a number, a name or a quoted text of a few words; None for anything else."""
    value = text.strip().strip(".")
    value = re.split(r"\s(?:if|when|unless|for|and|which|in which|on|but|so|as)\s", value)[0].strip()
    bare = value.strip(VALUE_MARKS)
    bare = bare.removeprefix("to ").removeprefix("the value ")
    if not bare or len(bare.split()) > MAX_VALUE or bare.count('"') % 2:
        return None
    first = bare.split()[0].lower()
    state = bare.lower().removesuffix(" string") in STATES
    valued = state or bare[0].isdigit() or first in NUMBER_WORDS or value[0] in VALUE_MARKS or is_code(bare.split()[0])
    if not valued or any(sign in bare for sign in "[]{}<>"):
        return None
    return tuple(dict.fromkeys([bare, bare.lower()])) if state or first in NUMBER_WORDS else (bare,)


def _first_sentence(entry: Entry) -> str:
    return sentences(entry.description[0])[0].strip()


def _which(entry: Entry, scope: str | None) -> Iterator[Draft]:
    """Ask which entry does what its description says."""
    sentence = _first_sentence(entry)
    said = predicate(sentence)
    if said is None or any(answer.lower() in said.lower() for answer in entry.answers):
        return
    # A description that repeats the words of the term gives it away.
    parts = [part for part in re.split(r"[._()-]+", entry.term.lower()) if len(part) > 2]
    lowered = said.lower()
    if parts and all(part in lowered for part in parts):
        return
    kind = "" if entry.kind == "setting" and scope is not None and entry.term.startswith(f"{scope}.") else entry.kind
    noun = f"Which {kind}" if kind else "What"
    place = in_scope(scope, "of" if entry.kind == "option" else "in")
    yield Draft(f"{noun}{place} {said}?", entry.answers, (entry.line, sentence), entry.kind or "entry", said)


def _default(entry: Entry, scope: str | None) -> Iterator[Draft]:
    described = (sentence.strip() for line in entry.description for sentence in sentences(line))
    found = [(match["value"], sentence) for sentence in described if (match := DEFAULT.search(sentence))]
    if len(found) != 1 or entry.kind in ("function", "class", "decorator", "exception"):
        return
    answers = value_answers(found[0][0])
    if answers is None or any(answer.lower() in entry.term.lower() for answer in answers):
        return
    kind = f"{entry.kind} " if entry.kind else ""
    place = in_scope(scope, "of" if entry.kind == "option" else "in")
    yield Draft(
        f"What is the default value of the {kind}{entry.term}{place}?",
        answers,
        (entry.line, found[0][1]),
        "default value",
        f"default {entry.term}",
    )


def _version(entry: Entry, scope: str | None) -> Iterator[Draft]:
    """Ask for the version that added or deprecated a term, if the entry names exactly one."""
    for pattern, verb in ((NEW, "added"), (DEPRECATED, "deprecated")):
        found = [(match["version"], line) for line in entry.description if (match := pattern.match(line))]
        if len(found) == 1 and len(words(entry.term)) == 1:
            version = found[0][0].rstrip(".")
            place = "" if scope is not None and entry.term.startswith(f"{scope}.") else in_scope(scope)
            yield Draft(
                f"In which version was {entry.term}{place} {verb}?",
                (version,),
                (entry.line, found[0][1]),
                "version",
                f"{verb} {entry.term}",
            )


def definition_draft(term: str, text: str, line: str, scope: str | None) -> Draft | None:
    """Ask which term has a definition, as in "Term: text"; None if the text is not a definition."""
    sentence = sentences(text)[0].strip()
    # After a dash, definitions begin with a small letter.
    said = predicate(f"{sentence[:1].upper()}{sentence[1:]}")
    if said is None or term.lower() in said.lower():
        return None
    return Draft(f"What{in_scope(scope)} {said}?", (term,), (line,), "definition", said)
