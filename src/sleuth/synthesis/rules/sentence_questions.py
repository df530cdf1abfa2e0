"""Questions about sentences of prose: definitions, uses, values, places and names."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sleuth.records import Passage
from sleuth.synthesis.documents import in_scope
from sleuth.synthesis.filters import text_sentences
from sleuth.synthesis.rules.english import AUXILIARIES, NAME_NOUNS, base_form, clean_predicate, lower_first
from sleuth.synthesis.rules.entries import clean_line
from sleuth.synthesis.rules.entry_questions import NUMBER_WORDS, Draft, value_answers
from sleuth.synthesis.vocabulary import GENERIC, content_words, is_code, word_set, words

# "The pre-commit hook runs ...", "`foo` is a ...", "Lintian checks ...".
SUBJECT = re.compile(
    rf"^(?:The )?[\"'“‘`]?(?P<name>[^\s\"'“”‘’`]+(?:\(\))?)[\"'”’`]?(?: (?P<noun>{NAME_NOUNS}))? "
    r"(?P<verb>[a-z]+) (?P<rest>\S.*)$"
)
VALUE = re.compile(r"^The (?P<what>[a-z][^.;:()]{3,90}?) (?:is|are) (?P<value>[^.;:()]{1,40})(?:\.|$)")
CALLED = re.compile(
    r"^(?P<what>(?:The|A|An) [^.;:(),]{8,110}?) (?P<verb>is|are) (?:called|named|known as)(?: the| a| an)? "
    r"(?P<name>[^.;:(),]{2,40})(?:[.,]|$)"
)
TERM = re.compile(
    r"^An? [\"'“‘`]?(?P<term>[a-z][\w-]*(?: [a-z][\w-]*){0,2})[\"'”’`]? is "
    r"(?P<text>(?:a|an|the|any|one) [^.;:()]{12,180})"
)
PLACE = re.compile(
    r"^(?P<what>[A-Z][^.;:(),]{4,70}?) (?P<aux>is|are|must be|should be|may be|can be|will be) "
    r"(?P<verb>stored|located|installed|placed|kept|found|written|put|saved|recorded|listed) "
    r"(?:in|at|under|into|to)(?: the(?: file| directory)?)? "
    r"(?P<place>[~/][\w.+/~-]{2,60}|[\w-]+/[\w./-]{2,60})(?=[\s.,;]|$)"
)
WITHIN = re.compile(
    r"^(?P<what>[A-Z][^.;:(),]{3,80}?) (?P<aux>must|should|may|can|will|is|are) (?P<before>[^.;:()]{2,80}?) "
    r"(?P<preposition>within|after|for) (?P<number>\d[\d,]*|[a-z]+) (?P<unit>[a-z]+s)\b(?P<after>[^.;:()]{0,60})\.?$"
)
STANDS = re.compile(r"^(?P<name>[A-Z][\w.-]{1,20}) (?:stands for|is short for) [\"“]?(?P<long>[^.;:()\"”]{4,60})")
ACRONYM = re.compile(
    r"(?P<long>[A-Z][\w-]{1,20}(?: (?:[A-Z][\w-]{1,20}|of|and|for|the)){1,5}) \((?P<name>[A-Z]{2,6})\)"
)
SMALL = word_set("of and for the")
PRONOUNS = word_set("it this that these those they he she we you there here what which who one each some any")
NO_SUBJECT = PRONOUNS | word_set("if when while since because as once unless until although though after before")
NO_NAMES = PRONOUNS | word_set(
    "a an the if when while since because as for in on at to by from with also however no not both all"
)
BACK = re.compile(r"\b(?:it|its|they|their|them|he|she|his|her)\b", re.IGNORECASE)
UNITS = word_set("seconds minutes hours days weeks months years times steps bytes characters")
VAGUE = word_set(
    """
    current correct second size location issue result answer reason problem only usual normal typical actual initial
    best simplest easiest common effect idea difference point
    """
)
PREPOSITIONS = word_set("in at by with when from on to for as after before once only if and or using through")
MODALS = word_set("must should may can will")
MIN_MODAL_WORDS = 6  # shorter predicates, such as "may be omitted", are true of much else
COMMON_SHARE = 0.08  # a name in more passages than this is the subject of the whole corpus
LONGEST_SENTENCE = 400  # characters


@dataclass(frozen=True, slots=True)
class ProperNames:
    """Words that a corpus writes with a capital inside sentences, and never without; `common` ones are everywhere."""

    names: frozenset[str]
    common: frozenset[str] = frozenset()

    @classmethod
    def from_passages(cls, passages: Iterable[Passage]) -> "ProperNames":
        upper: Counter[str] = Counter()
        lower: set[str] = set()
        spread: Counter[str] = Counter()
        total = 0
        for passage in passages:
            total += 1
            spread.update(set(words(passage.text)))
            for sentence in text_sentences(passage.text):
                for place, word in enumerate(words(sentence)):
                    if word[0].islower():
                        lower.add(word)
                    elif place > 0 and word[0].isupper():
                        upper[word] += 1
        common = frozenset(word for word, count in spread.items() if count > max(5, COMMON_SHARE * total))
        names = frozenset(word for word, count in upper.items() if count > 1 and word.lower() not in lower)
        return cls(names, common)

    def is_name(self, word: str) -> bool:
        """Whether a word is a name or an identifier that says something as an answer."""
        return word not in self.common and (is_code(word) or word in self.names)


def sentence_drafts(text: str, scope: str | None, names: ProperNames) -> Iterator[Draft]:
    """Yield the questions about the sentences of a passage."""
    for sentence in text_sentences(text):
        written = clean_line(sentence)
        if len(written) <= LONGEST_SENTENCE:
            yield from _subject(written, scope, names)
            for rule in (_value, _called, _term, _place, _within, _stands, _acronym):
                yield from rule(written, scope)


def _ask(scope: str | None, question: str) -> str:
    """Begin a question with the document it is about: "In NAME, what ...?"."""
    place = in_scope(scope, "In").lstrip()
    return f"{place}, {question}" if place else f"{question[0].upper()}{question[1:]}"


def _is_clear(phrase: str) -> bool:
    """Whether a noun phrase can stand in a question: no reference to other text."""
    return clean_predicate(f"x x x {phrase}") is not None and not BACK.search(phrase)


def _subject(sentence: str, scope: str | None, names: ProperNames) -> Iterator[Draft]:
    """Ask for the named subject of a sentence: what does, is used for, or is what the sentence says."""
    match = SUBJECT.match(sentence)
    if match is None or match["name"].lower() in NO_NAMES:
        return
    name, verb, rest = match["name"].strip("\"'`,"), match["verb"], match["rest"]
    if not names.is_name(name) or name.endswith((",", ":", ";", ".")) or any(sign in name for sign in "<>[]{}=,*—"):
        return
    if name.startswith("(") or ("/" in name and name[0].isupper() and not name.partition("/")[0].isupper()):
        return
    said = clean_predicate(rest)
    if said is None or name.lower().removesuffix("()") in said.lower() or BACK.search(" ".join(said.split()[:6])):
        return
    if not _identifies(verb, said):
        return
    noun = match["noun"]
    asked = f"which {noun}" if noun else "what"
    bare = name.removesuffix("()")
    answers = tuple(dict.fromkeys([bare, name]))
    yield Draft(_ask(scope, f"{asked} {verb} {said}?"), answers, (sentence,), "subject", f"{verb} {said}")


def _identifies(verb: str, said: str) -> bool:
    """Whether a predicate says enough to ask for its subject."""
    if verb == "is":
        return said.startswith(("a ", "an ", "the ", "used to ", "used for ", "used by ", "responsible for "))
    if verb in MODALS:
        return len(said.split()) >= MIN_MODAL_WORDS and not said.startswith("not ")
    # "Uploads are ..." has a noun that looks like a verb.
    return base_form(verb) is not None and said.split()[0] not in AUXILIARIES


def _value(sentence: str, scope: str | None) -> Iterator[Draft]:
    """Ask for a value: "The maximum length is 63 bytes" gives "What is the maximum length?"."""
    match = VALUE.match(sentence)
    if match is None or not _is_clear(match["what"]):
        return
    answers = value_answers(match["value"])
    if answers is None or match["value"].split()[0] in ("not", "a", "an", "the", "also", "only", "always", "one"):
        return
    said = match["what"].split()
    content = content_words(match["what"])
    named = [word for word in content if word not in GENERIC and word not in VAGUE]
    if not named or len(content) < 2 or any(word in ("that", "which", "if", "when") for word in said):
        return
    yield Draft(_ask(scope, f"what is the {match['what']}?"), answers, (sentence,), "value", match["what"])


def _called(sentence: str, scope: str | None) -> Iterator[Draft]:
    """Ask for a name: "The first stanza is called the header stanza" gives "What is the first stanza called?"."""
    match = CALLED.match(sentence)
    if match is None or not _is_clear(match["what"]):
        return
    name = match["name"].strip("\"'“”‘’` ")
    if len(name.split()) <= 4 and name.split()[0].lower() not in PREPOSITIONS:
        question = f"what {match['verb']} {lower_first(match['what'])} called?"
        yield Draft(_ask(scope, question), (name,), (sentence,), "name", match["what"])


def _term(sentence: str, scope: str | None) -> Iterator[Draft]:
    """Ask for a defined term: "A native package is a package that ..." gives "What is the term for a package that"."""
    match = TERM.match(sentence)
    said = clean_predicate(match["text"]) if match is not None else None
    if match is None or said is None or BACK.search(said) or len(said.split()) < MIN_MODAL_WORDS:
        return
    said = f"something {said[4:]}" if said.startswith("one ") else said
    question = f"what is the term for {said}?"
    yield Draft(_ask(scope, question), (match["term"],), (sentence,), "definition", said)


def _place(sentence: str, scope: str | None) -> Iterator[Draft]:
    """Ask for a path: "Manual pages must be installed in /usr/share/man" gives "Where must manual pages be ...?"."""
    match = PLACE.match(sentence)
    if match is None or match["what"].split()[0].lower() in PRONOUNS or not _is_clear(match["what"]):
        return
    first, _, rest = match["aux"].partition(" ")
    middle = f"{lower_first(match['what'])} {rest}".strip()
    answer = match["place"].rstrip(".")
    yield Draft(_ask(scope, f"where {first} {middle} {match['verb']}?"), (answer,), (sentence,), "place", match["what"])


def _within(sentence: str, scope: str | None) -> Iterator[Draft]:
    """Ask for a time: "Receipts must be sent within ten days" gives "Within how many days must receipts be sent?"."""
    match = WITHIN.match(sentence)
    if match is None or match["what"].split()[0].lower() in NO_SUBJECT:  # "When it is down, ..." has another subject
        return
    number, unit = match["number"], match["unit"]
    if not (number[0].isdigit() or number in NUMBER_WORDS) or unit not in UNITS:
        return
    words_after = f"{match['before']}{match['after']}"
    if not _is_clear(f"{match['what']} {words_after}"):
        return
    what = lower_first(match["what"])
    question = f"{match['preposition']} how many {unit} {match['aux']} {what} {words_after.strip()}?"
    yield Draft(_ask(scope, question), (f"{number} {unit}", number), (sentence,), "time", f"{what} {words_after}")


def _stands(sentence: str, _: str | None) -> Iterator[Draft]:
    match = STANDS.match(sentence)
    if match is not None:
        long = match["long"].strip("\"'“” ").removeprefix("the ")
        yield Draft(f"What does {match['name']} stand for?", (long,), (sentence,), "abbreviation", match["name"])


def _acronym(sentence: str, _: str | None) -> Iterator[Draft]:
    """Ask what an acronym stands for: "Request For Adoption (RFA)"."""
    for match in ACRONYM.finditer(sentence):
        said = match["long"].split()
        name = match["name"]
        for start in range(len(said)):
            letters = "".join(word[0] for word in said[start:] if word not in SMALL).upper()
            if letters == name and said[start] not in SMALL:
                long = " ".join(said[start:])
                yield Draft(f"What does {name} stand for?", (long,), (sentence,), "abbreviation", name)
                break
