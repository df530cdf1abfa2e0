"""Pieces of a sentence that can be asked for, told by their form: names, dates, numbers, quoted titles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sleuth.synthesis.cloze import dates
from sleuth.synthesis.cloze.dates import DAY, MONTH, MONTHS
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.nouns import AGENTS, FAMILY, GROUPS, PEOPLE, PLACES, WORKS, Kind, of_name

DATE = re.compile(rf"\b{DAY}\b")
MONTH_OF = re.compile(rf"\b{MONTH} \d{{4}}\b")
YEAR = re.compile(
    r"(?<=\b(?:in|In) )(?:1\d{3}|20[0-4]\d)(?=[ ,.]|$)(?! (?:and|to|or|until|through)\b| [A-Z]|,? (?:and )?\d{4})"
)
WORD = r"(?:[A-ZÀ-ÖØ-Þ][\w’'-]*[\w]|[A-Z]\.(?:[A-Z]\.)*|(?:Dr|St|Mt|Jr|Sr|Lt|Gen|Col)\.|[A-Z])"
BETWEEN = r"(?:of the|of|de la|de|van der|van|von|del|la|le|di|da|du|bin|al|y|&|for the)"
NAME = re.compile(rf"(?<![\w.’'-]){WORD}(?: (?:{BETWEEN} )?{WORD})*(?![\w’'])")
FIRST_NAME = re.compile(rf"(?:The )?({NAME.pattern})(?= [a-z])")
QUOTED = re.compile(r'"([A-Z0-9][^"]{1,60}?),?"')
COUNTED = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty thirty forty fifty"
).replace(" ", "|")
NUMBER = re.compile(
    rf"(?<![\w.,$£€-])(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d{{1,4}}(?:\.\d+)?|{COUNTED})"
    r"(?: (?P<size>million|billion|thousand))? (?P<unit>(?:[a-z][a-z-]+ ){0,2}?"
    r"(?:[a-z]{2,}[^s\W]s|people|children|men|women|km|miles|metres|feet|species|series))(?![\w-])"
)
SHARE = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?:%| per ?cent\b)")
MONEY = re.compile(r"(?:US|A)?[$£€]\d[\d,]*(?:\.\d+)?(?: (?:million|billion|thousand))?\b")
DAYS = frozenset({"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"})
NO_NAMES = (
    frozenset(MONTHS) | DAYS | {"I", "II", "III", "Christmas", "English", "God", "The", "A", "An", "He", "She", "It"}
)
# What may follow a name that is not part of a longer phrase, such as Disney film or Broadway actress.
BEHIND = re.compile(
    r"$|[,.]|\s(?:and|or|in|on|of|at|for|from|to|with|by|as|who|which|that|is|was|are|were|has|had|the|a|an|his|her|its|during|between|"
    r"against|since|until|when|where|while|after|before|because|but|under|over|near|alongside|into|through|about|then|via|"
    r"also|will|would|can|could|did|within|without|among|along|he|she|it|they|located|based|where|"
    r"[a-z]{3,}ed)\b"
)
DEMONYM = re.compile(r"^[A-Z][a-z]*(?:ese|ish|ian|ean|ican|ani|ench|utch|eek|iss|wegian)$")
BEFORE = re.compile(r"(?:(?<![\w’'-])([\w’'-]++))? ?$")
PREPOSITIONS = frozenset(
    """
    in on at by of from to with for as near against under after into during since until about through over between
    alongside within named called starring
    """.split()  # noqa: SIM905 - read as lines
)
DETERMINERS = frozenset({"the", "a", "an", "his", "her", "its", "their"})
OWNER = re.compile(r"['’]s(?: |$)")
HONORIFICS = re.compile(
    r"^(?:Captain|Senator|President|Sir|Dame|Dr\.?|Professor|Colonel|Governor|Judge|Bishop|Archbishop|Father|"
    r"Reverend|Mayor|Lieutenant|Admiral|Congressman|Emperor|Pope|Saint|St\.) (?=[A-Z])"
)
WITHIN = re.compile(rf"(?:, {WORD}(?: {WORD})*)+")
ANOTHER = re.compile(r",? (?:and|or) (?:the )?[A-Z]")
SEVERAL = re.compile(r"^(?:,? (?:and|or)|,) (?:the |a |\")?[A-Z\"]|^/")
ONE_OF = re.compile(
    r"[\w.\"’'] (?:and|or) (?:the )?$|(?<![\w.’'-])(?=(?:[.’'-]|[^\WA-Z])*+[A-Z])[\w.’'-]++, (?:the )?$|/$|\", $"
)
ROLES = (PEOPLE - FAMILY) | GROUPS | WORKS | PLACES
OF_A_KIND = re.compile(rf"\bthe (?:[A-Za-z]+ )?({'|'.join(sorted(PLACES))}) of (?:the )?$")
ANY_ARTICLE = re.compile(r"\b(?:the|an?|his|her|its|their|fellow) $")
THE = re.compile(r"\bthe $")
NEAR = 80  # letters before a name in which its role stands
ROLE = re.compile(r"(?:\b(?:the|an?|his|her|its|their|fellow) )?((?:[A-Za-z][\w-]{0,40} ){0,3}?)([a-z-]{1,40}) $")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a sentence to be asked for.

    `start` and `end` bound what the asking words replace, with an article or a role before the answer; `preposition`
    is the word before that, and `noun` what is asked for: which band, how many books.
    """

    start: int
    end: int
    answer: str
    kind: Kind
    preposition: str | None = None
    noun: str | None = None
    aliases: tuple[str, ...] = ()
    listed: bool = False


def spans(text: str, begin: int, lexicon: Lexicon) -> Iterator[Span]:
    """The pieces of a text behind `begin` that can be asked for, none inside another."""
    taken: list[tuple[int, int]] = []
    for span in (*_times(text), *_numbers(text), *_quoted(text, lexicon), *_names(text, lexicon)):
        if span.start >= begin and not any(span.start < end and start < span.end for start, end in taken):
            taken.append((span.start, span.end))
            yield span


def leading(text: str, lexicon: Lexicon) -> Span | None:
    """The name that a text begins with, where it is the subject of a verb."""
    found = FIRST_NAME.match(text)
    if found is None or not _is_name(found[1]) or not 1 < len(found[1].split()) <= 6:
        return None
    kind, noun = _sort(found[1], "", lexicon)
    return Span(0, found.end(), found[1], kind, None, noun, _aliases(found[1], kind))


def _times(text: str) -> Iterator[Span]:
    for found in DATE.finditer(text):
        before, aliases = _word_before(text, found.start()), dates.aliases(found[0])
        yield Span(found.start(), found.end(), found[0], Kind.DATE, before, aliases=aliases)
    for found in MONTH_OF.finditer(text):
        if not re.search(r"\d $", text[: found.start()]):
            yield Span(found.start(), found.end(), found[0], Kind.DATE, _word_before(text, found.start()))
    for found in YEAR.finditer(text):
        yield Span(found.start(), found.end(), found[0], Kind.YEAR, "in")


def _numbers(text: str) -> Iterator[Span]:
    for found in SHARE.finditer(text):
        short = re.match(r"[\d.]+", found[0])
        aliases = (f"{short[0]}%", f"{short[0]} percent", short[0]) if short else ()
        yield Span(found.start(), found.end(), found[0], Kind.AMOUNT, None, "percentage", aliases)
    for found in MONEY.finditer(text):
        if not re.match(r" (?:and|to|or)\b|[–-]", text[found.end() :]):
            yield Span(found.start(), found.end(), found[0], Kind.AMOUNT, _word_before(text, found.start()))
    for found in NUMBER.finditer(text):
        behind = re.match(r" (?:ago|later|before|earlier|after|old)\b|,", text[found.end() :])
        before = _word_before(text, found.start())
        is_year = re.fullmatch(r"1[5-9]\d\d|20\d\d", found["number"])
        if behind or is_year or before in {"the", "of", "or", "to", "by", "first", "last", "and", "than", "top", "no"}:
            continue
        number = found["number"] + (f" {found['size']}" if found["size"] else "")
        unit = found["unit"]
        aliases = (f"{number} {unit}", *([number.replace(",", "")] if "," in number else ()))
        yield Span(found.start(), found.end(), number, Kind.NUMBER, before, unit, aliases)


def _quoted(text: str, lexicon: Lexicon) -> Iterator[Span]:
    for found in QUOTED.finditer(text):
        answer, before = found[1].strip(), text[: found.start()]
        if len(answer.split()) > 8 or SEVERAL.match(text[found.end() :]) or ONE_OF.search(before):
            continue
        if not BEHIND.match(text[found.end() :]):
            continue
        start, noun = _role(
            before, WORKS | {"nickname", "nicknames", "name", "title", "motto", "slogan", "pseudonym", "track", "hit"}
        )
        preposition = _word_before(text, start)
        if noun is None and preposition not in PREPOSITIONS:
            continue
        entry = lexicon.titles.get(answer)
        noun = noun or (entry.noun if entry and entry.kind is Kind.WORK else None)
        yield Span(start, found.end(), answer, Kind.WORK, preposition, noun)


def _names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    for found in NAME.finditer(text):
        name, before, behind = found[0], text[: found.start()], text[found.end() :]
        if not found.start() or not _is_name(name) or len(name.split()) > 6:
            continue
        if re.match(r" the [A-Z]", behind) or before.endswith('"') or behind[:1] == '"' or not BEHIND.match(behind):
            continue
        start, role = _role(before, ROLES)
        if _is_nation_first(name, lexicon):
            continue
        kind, noun = _sort(name, role or "", lexicon)
        span = Span(start, found.end(), name, kind, _word_before(text, start), noun, _aliases(name, kind))
        span = _widened(span, behind)
        if BEHIND.match(text[span.end :]):
            yield replace(span, listed=bool(SEVERAL.match(text[span.end :]) or ONE_OF.search(before)))


def _widened(span: Span, behind: str) -> Span:
    """A place with what it lies in: Devon, Pennsylvania."""
    lies_in = WITHIN.match(behind) if span.preposition in ("in", "at", "near", "from") else None
    may_be = span.kind is Kind.PLACE or (span.kind is Kind.THING and span.preposition != "from")
    if lies_in is None or not may_be or ANOTHER.match(behind, lies_in.end()):
        return span
    noun = span.noun if span.noun in PLACES else None
    whole, end = span.answer + lies_in[0], span.end + lies_in.end()
    return replace(span, end=end, answer=whole, kind=Kind.PLACE, noun=noun, aliases=(span.answer,))


def _is_name(name: str) -> bool:
    words = name.split()
    if all(word in NO_NAMES for word in words) or name.isdigit() or OWNER.search(name):
        return False
    return not (len(words) == 1 and (DEMONYM.match(name) or len(name) < 3))


def _is_nation_first(name: str, lexicon: Lexicon) -> bool:
    """Whether a name begins with an adjective that is none of it: Scottish DJ, Belgian Eddy Merckx."""
    first, space, _ = name.partition(" ")
    return bool(space and DEMONYM.match(first)) and of_name(name) is None and name not in lexicon.titles


def _sort(name: str, role: str, lexicon: Lexicon) -> tuple[Kind, str | None]:
    """The kind of a name, and the noun that asks for it where one is known."""
    last = role.split()[-1] if role else ""
    if last in PEOPLE or AGENTS.search(last):
        return Kind.PERSON, role
    for nouns, kind in ((GROUPS, Kind.GROUP), (WORKS, Kind.WORK), (PLACES, Kind.PLACE)):
        if last in nouns:
            return kind, role
    told = of_name(name)
    if told:
        return told
    entry = lexicon.titles.get(name) or lexicon.titles.get(f"The {name}")
    if name in lexicon.places:
        return Kind.PLACE, entry.noun if entry and entry.kind is Kind.PLACE else None
    known = entry.kind if entry else None
    if entry and known and _says(known, name, lexicon):
        return known, entry.noun if known is not Kind.PERSON else None
    words = HONORIFICS.sub("", name).split()
    is_person = words != name.split() or (len(words) in (2, 3, 4) and words[0] in lexicon.given and "of" not in words)
    is_person = is_person or name in lexicon.people
    return (Kind.PERSON if is_person else Kind.THING), None


def _says(kind: Kind, name: str, lexicon: Lexicon) -> bool:
    """Whether a title tells what its words mean in a sentence: a work of one word seldom does."""
    if kind is Kind.WORK:
        return " " in name
    return kind is not Kind.THING or lexicon.is_woman(name) is None


def _aliases(name: str, kind: Kind) -> tuple[str, ...]:
    short = HONORIFICS.sub("", name)
    return (short,) if kind is Kind.PERSON and short != name else ()


def _role(before: str, nouns: frozenset[str]) -> tuple[int, str | None]:
    """Where the words begin that are replaced with a name: an article, or a role such as the American director."""
    near = max(0, len(before) - NEAR)
    place = OF_A_KIND.search(before, near) if nouns is ROLES else None
    if place:
        return place.start(), place[1]
    found = ROLE.search(before, near)
    if found and (found[2] in nouns or (nouns is ROLES and AGENTS.search(found[2]))):
        adjectives = found[1].split()
        kept: list[str] = []
        for word in reversed(adjectives):
            if word in PREPOSITIONS or word in DETERMINERS or word in ("and", "or", "is", "was") or word.endswith("ed"):
                break
            kept.insert(0, word)
        phrase = " ".join([*kept, found[2]])
        start = len(before) - len(phrase) - 1
        article = ANY_ARTICLE.search(before, max(0, start - 8), start)
        return (article.start() if article else start), phrase
    return (len(before) - 4 if THE.search(before, max(0, len(before) - 5)) else len(before)), None


def _word_before(text: str, place: int) -> str | None:
    found = BEFORE.search(text, max(0, place - 30), place)
    return found[1].lower() if found and found[1] else None
