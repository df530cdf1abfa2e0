"""Answer spans of a sentence, found by their form: names, dates, numbers and quoted titles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sleuth.synthesis.cloze.english import (
    AGENT_SUFFIX,
    FULL_DATE,
    GROUP_NOUNS,
    MONTH,
    MONTHS,
    NON_OCCUPATIONS,
    PERSON_NOUNS,
    PLACE_NOUNS,
    WORK_NOUNS,
    Kind,
    date_aliases,
    kind_of_name,
)
from sleuth.synthesis.cloze.lexicon import Lexicon

FULL_DATE_SPAN = re.compile(rf"\b{FULL_DATE}\b")
MONTH_AND_YEAR = re.compile(rf"\b{MONTH} \d{{4}}\b")
YEAR_AFTER_IN = re.compile(
    r"(?<=\b(?:in|In) )(?:1\d{3}|20[0-4]\d)(?=[ ,.]|$)(?! (?:and|to|or|until|through)\b| [A-Z]|,? (?:and )?\d{4})"
)
WORD = r"(?:[A-ZÀ-ÖØ-Þ][\w’'-]*[\w]|[A-Z]\.(?:[A-Z]\.)*|(?:Dr|St|Mt|Jr|Sr|Lt|Gen|Col)\.|[A-Z])"
NAME_PARTICLE = r"(?:of the|of|de la|de|van der|van|von|del|la|le|di|da|du|bin|al|y|&|for the)"
NAME = re.compile(rf"(?<![\w.’'-]){WORD}(?: (?:{NAME_PARTICLE} )?{WORD})*(?![\w’'])")
LEADING_NAME = re.compile(rf"(?:The )?({NAME.pattern})(?= [a-z])")
QUOTED = re.compile(r'"([A-Z0-9][^"]{1,60}?),?"')
NUMBER_WORD = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty"
).replace(" ", "|")
NUMBER = re.compile(
    rf"(?<![\w.,$£€-])(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d{{1,4}}(?:\.\d+)?|{NUMBER_WORD})"
    r"(?: (?P<size>million|billion|thousand))? (?P<unit>(?:[a-z][a-z-]+ ){0,2}?"
    r"(?:[a-z]{2,}[^s\W]s|people|children|men|women|km|miles|metres|feet|species|series))(?![\w-])"
)
PERCENTAGE = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?:%| per ?cent\b)")
MONEY = re.compile(r"(?:US|A)?[$£€]\d[\d,]*(?:\.\d+)?(?: (?:million|billion|thousand))?\b")
WEEKDAYS = frozenset({"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"})
NOT_NAMES = (
    frozenset(MONTHS)
    | WEEKDAYS
    | {"I", "II", "III", "Christmas", "English", "God", "The", "A", "An", "He", "She", "It"}
)
# Text after a name that shows the name is not part of a longer phrase, such as Disney film or Broadway actress.
AFTER_NAME = re.compile(
    r"$|[,.]|\s(?:and|or|in|on|of|at|for|from|to|with|by|as|who|which|that|is|was|are|were|has|had|the|a|an|his|her|its|during|between|"
    r"against|since|until|when|where|while|after|before|because|but|under|over|near|alongside|into|through|about|then|via|"
    r"also|will|would|can|could|did|within|without|among|along|he|she|it|they|located|based|where|"
    r"[a-z]{3,}ed)\b"
)
DEMONYM_SUFFIX = re.compile(r"^[A-Z][a-z]*(?:ese|ish|ian|ean|ican|ani|ench|utch|eek|iss|wegian)$")
WORD_BEFORE = re.compile(r"(?:(?<![\w’'-])([\w’'-]++))? ?$")
PREPOSITIONS = frozenset(
    """
    in on at by of from to with for as near against under after into during since until about through over between
    alongside within named called starring
    """.split()  # noqa: SIM905 - read as lines
)
DETERMINERS = frozenset({"the", "a", "an", "his", "her", "its", "their"})
POSSESSIVE = re.compile(r"['’]s(?: |$)")
HONORIFICS = re.compile(
    r"^(?:Captain|Senator|President|Sir|Dame|Dr\.?|Professor|Colonel|Governor|Judge|Bishop|Archbishop|Father|"
    r"Reverend|Mayor|Lieutenant|Admiral|Congressman|Emperor|Pope|Saint|St\.) (?=[A-Z])"
)
ENCLOSING_PLACES = re.compile(rf"(?:, {WORD}(?: {WORD})*)+")
COORDINATED_NAME = re.compile(r",? (?:and|or) (?:the )?[A-Z]")
LIST_CONTINUES = re.compile(r"^(?:,? (?:and|or)|,) (?:the |a |\")?[A-Z\"]|^/")
IN_LIST = re.compile(
    r"[\w.\"’'] (?:and|or) (?:the )?$|(?<![\w.’'-])(?=(?:[.’'-]|[^\WA-Z])*+[A-Z])[\w.’'-]++, (?:the )?$|/$|\", $"
)
ROLES = (PERSON_NOUNS - NON_OCCUPATIONS) | GROUP_NOUNS | WORK_NOUNS | PLACE_NOUNS
PLACE_OF = re.compile(rf"\bthe (?:[A-Za-z]+ )?({'|'.join(sorted(PLACE_NOUNS))}) of (?:the )?$")
DETERMINER_BEFORE = re.compile(r"\b(?:the|an?|his|her|its|their|fellow) $")
THE_BEFORE = re.compile(r"\bthe $")
ROLE_WINDOW = 80  # characters before a name that may contain its role
ROLE_BEFORE = re.compile(
    r"(?:\b(?:the|an?|his|her|its|their|fellow) )?((?:[A-Za-z][\w-]{0,40} ){0,3}?)([a-z-]{1,40}) $"
)
QUOTED_NOUNS = WORK_NOUNS | {"nickname", "nicknames", "name", "title", "motto", "slogan", "pseudonym", "track", "hit"}
NOT_BEFORE_NUMBER = frozenset({"the", "of", "or", "to", "by", "first", "last", "and", "than", "top", "no"})


@dataclass(frozen=True, slots=True)
class Span:
    """An answer span.

    `start` and `end` bound the text that question words replace, including an article or a role before the answer.
    `preposition` is the word before `start`, and `noun` what the question asks for: which band, how many books.
    """

    start: int
    end: int
    answer: str
    kind: Kind
    preposition: str | None = None
    noun: str | None = None
    aliases: tuple[str, ...] = ()
    in_list: bool = False


def find_spans(text: str, begin: int, lexicon: Lexicon) -> Iterator[Span]:
    """Find the non-overlapping answer spans of a text that start at `begin` or later."""
    taken: list[tuple[int, int]] = []
    for span in (*_dates(text), *_numbers(text), *_quoted_titles(text, lexicon), *_names(text, lexicon)):
        if span.start >= begin and not any(span.start < end and start < span.end for start, end in taken):
            taken.append((span.start, span.end))
            yield span


def leading_name(text: str, lexicon: Lexicon) -> Span | None:
    """Return the name at the start of a text, if it is the subject of a verb."""
    found = LEADING_NAME.match(text)
    if found is None or not _is_name(found[1]) or not 1 < len(found[1].split()) <= 6:
        return None
    kind, noun = _classify(found[1], "", lexicon)
    return Span(0, found.end(), found[1], kind, None, noun, _person_aliases(found[1], kind))


def _dates(text: str) -> Iterator[Span]:
    for found in FULL_DATE_SPAN.finditer(text):
        before, aliases = _word_before(text, found.start()), date_aliases(found[0])
        yield Span(found.start(), found.end(), found[0], Kind.DATE, before, aliases=aliases)
    for found in MONTH_AND_YEAR.finditer(text):
        if not re.search(r"\d $", text[: found.start()]):
            yield Span(found.start(), found.end(), found[0], Kind.DATE, _word_before(text, found.start()))
    for found in YEAR_AFTER_IN.finditer(text):
        yield Span(found.start(), found.end(), found[0], Kind.YEAR, "in")


def _numbers(text: str) -> Iterator[Span]:
    for found in PERCENTAGE.finditer(text):
        number = re.match(r"[\d.]+", found[0])
        aliases = (f"{number[0]}%", f"{number[0]} percent", number[0]) if number else ()
        yield Span(found.start(), found.end(), found[0], Kind.AMOUNT, None, "percentage", aliases)
    for found in MONEY.finditer(text):
        if not re.match(r" (?:and|to|or)\b|[–-]", text[found.end() :]):
            yield Span(found.start(), found.end(), found[0], Kind.AMOUNT, _word_before(text, found.start()))
    for found in NUMBER.finditer(text):
        is_relative = re.match(r" (?:ago|later|before|earlier|after|old)\b|,", text[found.end() :])
        before = _word_before(text, found.start())
        if is_relative or re.fullmatch(r"1[5-9]\d\d|20\d\d", found["number"]) or before in NOT_BEFORE_NUMBER:
            continue
        answer = found["number"] + (f" {found['size']}" if found["size"] else "")
        aliases = (f"{answer} {found['unit']}", *([answer.replace(",", "")] if "," in answer else ()))
        yield Span(found.start(), found.end(), answer, Kind.NUMBER, before, found["unit"], aliases)


def _quoted_titles(text: str, lexicon: Lexicon) -> Iterator[Span]:
    for found in QUOTED.finditer(text):
        answer, before, after = found[1].strip(), text[: found.start()], text[found.end() :]
        if len(answer.split()) > 8 or LIST_CONTINUES.match(after) or IN_LIST.search(before):
            continue
        if not AFTER_NAME.match(after):
            continue
        start, noun = _role(before, QUOTED_NOUNS)
        preposition = _word_before(text, start)
        if noun is None and preposition not in PREPOSITIONS:
            continue
        entry = lexicon.titles.get(answer)
        noun = noun or (entry.noun if entry and entry.kind is Kind.WORK else None)
        yield Span(start, found.end(), answer, Kind.WORK, preposition, noun)


def _names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    for found in NAME.finditer(text):
        name, before, after = found[0], text[: found.start()], text[found.end() :]
        if not found.start() or not _is_name(name) or len(name.split()) > 6:
            continue
        if re.match(r" the [A-Z]", after) or before.endswith('"') or after[:1] == '"' or not AFTER_NAME.match(after):
            continue
        start, role = _role(before, ROLES)
        first, space, _ = name.partition(" ")
        # The adjective is not part of the name: Scottish DJ, Belgian Eddy Merckx.
        if space and DEMONYM_SUFFIX.match(first) and kind_of_name(name) is None and name not in lexicon.titles:
            continue
        kind, noun = _classify(name, role or "", lexicon)
        span = Span(start, found.end(), name, kind, _word_before(text, start), noun, _person_aliases(name, kind))
        span = _with_enclosing_places(span, after)
        rest = text[span.end :]
        if AFTER_NAME.match(rest):
            yield replace(span, in_list=bool(LIST_CONTINUES.match(rest) or IN_LIST.search(before)))


def _with_enclosing_places(span: Span, after: str) -> Span:
    """Extend a place to include the places that contain it: Devon, Pennsylvania."""
    enclosing = ENCLOSING_PLACES.match(after) if span.preposition in ("in", "at", "near", "from") else None
    is_place = span.kind is Kind.PLACE or (span.kind is Kind.THING and span.preposition != "from")
    if enclosing is None or not is_place or COORDINATED_NAME.match(after, enclosing.end()):
        return span
    noun = span.noun if span.noun in PLACE_NOUNS else None
    whole, end = span.answer + enclosing[0], span.end + enclosing.end()
    return replace(span, end=end, answer=whole, kind=Kind.PLACE, noun=noun, aliases=(span.answer,))


def _is_name(name: str) -> bool:
    words = name.split()
    if all(word in NOT_NAMES for word in words) or name.isdigit() or POSSESSIVE.search(name):
        return False
    return not (len(words) == 1 and (DEMONYM_SUFFIX.match(name) or len(name) < 3))


def _classify(name: str, role: str, lexicon: Lexicon) -> tuple[Kind, str | None]:
    """Return the kind of a name, and the noun for it in questions, if known."""
    last = role.split()[-1] if role else ""
    if last in PERSON_NOUNS or AGENT_SUFFIX.search(last):
        return Kind.PERSON, role
    for nouns, kind in ((GROUP_NOUNS, Kind.GROUP), (WORK_NOUNS, Kind.WORK), (PLACE_NOUNS, Kind.PLACE)):
        if last in nouns:
            return kind, role
    by_words = kind_of_name(name)
    if by_words:
        return by_words
    entry = lexicon.titles.get(name) or lexicon.titles.get(f"The {name}")
    if name in lexicon.places:
        return Kind.PLACE, entry.noun if entry and entry.kind is Kind.PLACE else None
    if entry and entry.kind:
        # A one-word work, or a thing with the name of a person, is rarely what the sentence means.
        is_given_name = lexicon.is_female_name(name) is not None
        doubtful = " " not in name if entry.kind is Kind.WORK else entry.kind is Kind.THING and is_given_name
        if not doubtful:
            return entry.kind, entry.noun if entry.kind is not Kind.PERSON else None
    words = HONORIFICS.sub("", name).split()
    has_given_name = len(words) in (2, 3, 4) and words[0] in lexicon.given_names and "of" not in words
    is_person = words != name.split() or has_given_name or name in lexicon.people
    return (Kind.PERSON if is_person else Kind.THING), None


def _person_aliases(name: str, kind: Kind) -> tuple[str, ...]:
    short = HONORIFICS.sub("", name)
    return (short,) if kind is Kind.PERSON and short != name else ()


def _role(before: str, nouns: frozenset[str]) -> tuple[int, str | None]:
    """Return the start of the article or role before a name, such as "the American director", and the role."""
    window = max(0, len(before) - ROLE_WINDOW)
    place = PLACE_OF.search(before, window) if nouns is ROLES else None
    if place:
        return place.start(), place[1]
    found = ROLE_BEFORE.search(before, window)
    if found and (found[2] in nouns or (nouns is ROLES and AGENT_SUFFIX.search(found[2]))):
        words = [found[2]]
        for word in reversed(found[1].split()):
            if word in PREPOSITIONS or word in DETERMINERS or word in ("and", "or", "is", "was") or word.endswith("ed"):
                break
            words.insert(0, word)
        phrase = " ".join(words)
        start = len(before) - len(phrase) - 1
        article = DETERMINER_BEFORE.search(before, max(0, start - 8), start)
        return (article.start() if article else start), phrase
    return (len(before) - 4 if THE_BEFORE.search(before, max(0, len(before) - 5)) else len(before)), None


def _word_before(text: str, end: int) -> str | None:
    found = WORD_BEFORE.search(text, max(0, end - 30), end)
    return found[1].lower() if found and found[1] else None
