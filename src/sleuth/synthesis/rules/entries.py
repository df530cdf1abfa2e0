"""Entries of reference documentation: a term, such as an option or a function, and the lines that describe it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sleuth.synthesis.rules.english import VERBS
from sleuth.synthesis.vocabulary import is_code, word_set, words

BULLET = re.compile(r"^(?:[-*•+‣–]\s+|\d{1,2}[.)]\s+)")
PILCROW = "¶"
SIGNATURE = re.compile(
    r"^(?:(?P<kind>class|exception|async|classmethod|staticmethod|static|method|attribute|property|function|data|"
    r"abstractmethod|coroutine)\s+)?(?P<name>@?[A-Za-z_][\w.]*)"
    r"(?P<call>\([^()]*+(?:\([^()]*+\)[^()]*+)*+\))?(?:\s?(?:->|→|=)\s?[^\n]+)?$"
)
OPTION = re.compile(r"^-{1,2}[A-Za-z0-9][\w-]*")
SETTING = re.compile(r"^(?P<name>[A-Za-z][\w<>*-]*(?:[._][\w<>*-]+)+)(?:\s\((?P<type>[\w /-]{1,20})\))?$")
INLINE = re.compile(r"^(?P<term>[^\s:][^:]{0,60}?)(?::\s|\s[–—]\s|\s--\s)(?P<text>\S.*)$")
LABELS = word_set(
    """
    note notes warning warnings example examples tip tips important caution see also usage availability returns return
    raises parameters arguments changed new deprecated added removed author authors copyright synopsis description
    options default defaults result output input syntax hint danger attention todo question answer summary abstract
    this that there it these error hint detail notice fatal log statement context info debug eof begin end
    """
)
CALLED = {"class": "class", "exception": "exception", "property": "property", "attribute": "attribute"}
MAX_TERM = 90  # characters


@dataclass(slots=True)
class Entry:
    """A term with the ways to write it, what it is, and the lines that describe it."""

    term: str
    answers: tuple[str, ...]
    kind: str  # option, function, class, setting, ...; "" if unknown
    line: str
    description: list[str] = field(default_factory=list)


def clean_line(line: str) -> str:
    """Remove bullets, permalink signs and code marks from a line."""
    return BULLET.sub("", line.strip()).replace(PILCROW, "").replace("``", "").strip(" `*")


def read_entries(text: str) -> Iterator[Entry]:
    """Yield the entries of a text; the lines up to the next term describe an entry.

    Terms of one kind in direct succession share a description: all of them are its answers.
    """
    current: Entry | None = None
    lines = [line.strip() for line in text.splitlines() if clean_line(line)]
    for written, following in zip(lines, [*lines[1:], ""], strict=True):
        line = clean_line(written)
        found = parse_term(line) or _parse_list_term(written, following)
        if found is None:
            if current is not None:
                current.description.append(line)
            continue
        if current is not None and current.description:
            yield current
        elif current is not None and current.kind == found.kind:
            found.answers = tuple(dict.fromkeys([*found.answers, *current.answers]))
        current = found
    if current is not None and current.description:
        yield current


def parse_term(line: str) -> Entry | None:
    """Read a line as the term of an entry; None if it is prose."""
    if len(line) > MAX_TERM or line.endswith((".", ":", ";", ",")) or "\t" in line:
        return None
    if OPTION.match(line):
        return _parse_option(line)
    if setting := SETTING.match(line):
        return _parse_setting(setting, line)
    signature = SIGNATURE.match(line)
    if signature is None:
        return None
    return _parse_signature(signature, line)


def _parse_list_term(line: str, following: str) -> Entry | None:
    """Read a short list item as a term if the next item describes it, as HTML definition lists are rendered."""
    term = clean_line(line)
    is_list = BULLET.match(line) and BULLET.match(following) and following.endswith(".")
    if not is_list or len(term.split()) > 4 or not term[0].isalpha() or term[-1] in ".,;:!?" or not term[0].isupper():
        return None
    return None if term.split()[0].lower() in LABELS else Entry(term, (term,), "", term)


def _parse_option(line: str) -> Entry | None:
    """Read "-f, --file=NAME" as an option with two spellings."""
    names = []
    # Without a separator in HTML: "-q--quiet".
    for part in re.split(r", | \| |\s/\s|(?<=^-[A-Za-z0-9])(?=--)", line):
        match = OPTION.match(part)
        rest = part[match.end() :] if match else part
        if match is None or (rest and rest[0] not in "=[ <"):
            return None
        if len(rest.split()) > 3:
            return None
        names.append(match[0].rstrip("-"))
    main = max(names, key=len)
    return Entry(main, tuple(dict.fromkeys([main, *names])), "option", line)


def _parse_setting(setting: re.Match[str], line: str) -> Entry | None:
    name = setting["name"]
    if "<" in name or "*" in name:
        return None
    owner, dot, short = name.rpartition(".")
    if dot and owner[:1].isupper() and not owner.isupper():
        return Entry(name, (name, short) if len(short) > 3 else (name,), "attribute", line)
    # A setting has a section or a type; other names may be anything.
    kind = "setting" if dot or setting["type"] else ""
    return Entry(name, (name,), "constant" if name.isupper() else kind, line)


def _parse_signature(signature: re.Match[str], line: str) -> Entry | None:
    name, kind, call = signature["name"], signature["kind"], signature["call"]
    if not is_code(name) and not kind and call is None:
        return None
    if call is not None and " " in line[: signature.start("call")].removeprefix(f"{kind} "):
        return None
    if name.lower() in LABELS:
        return None
    if call is not None and call[1:-1].isdigit():  # a manual page, such as git(1)
        return Entry(f"{name}{call}", (f"{name}{call}", name), "manual page", line)
    called = "function" if call is not None and not name.isupper() else ""
    what = CALLED.get(kind or "", called)
    if name.startswith("@"):
        what = "decorator"
    bare = name.lstrip("@")
    short = bare.rpartition(".")[2]
    answers = [bare, f"{bare}()"] if what in ("function", "decorator") else [bare]
    if short != bare and len(short) > 3:
        answers.append(short)
    return Entry(bare, tuple(answers), what, line)


def read_inline(line: str) -> tuple[str, str] | None:
    """Split "Term: text" or "Term — text"; None for labels such as "Note:" and for sentences with a colon."""
    match = INLINE.match(line)
    if match is None:
        return None
    term, text = match["term"].strip(" `*\"'"), match["text"].strip()
    count = len(words(term))
    said = [word.lower() for word in term.split()]
    if not 1 <= count <= 5 or any(word in LABELS for word in said) or _is_command(term):
        return None
    return (term, text) if term[0].isupper() or is_code(term.split()[0]) else None


def _is_command(term: str) -> bool:
    """Whether a term is an instruction, such as "Begin the game", and not a name, such as DROP ROLE."""
    first, _, rest = term.partition(" ")
    return bool(rest) and first.lower() in VERBS and not first.isupper()
