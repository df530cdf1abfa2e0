"""Questions about key-value lines and tables: the value of a key, and the cell of a row and a column."""

import re
from collections import Counter
from collections.abc import Iterator

from sleuth.synthesis.documents import in_scope
from sleuth.synthesis.rules.entries import clean_line, read_inline
from sleuth.synthesis.rules.entry_questions import Draft, definition_draft
from sleuth.synthesis.vocabulary import word_set, words

MAX_VALUE = 8  # words
MAX_CELL = 6
MAX_COLUMN = 4
RULE = re.compile(r"^[\s|:+-]+$")  # the line below the header of a table
# Names of columns in tables without a rule below their header.
KEYS = word_set(
    """
    name option parameter field code function command key setting term attribute variable method argument property
    status symbol operator keyword identifier file directory item id product team role country
    """
)
COLUMNS = KEYS | word_set(
    """
    description meaning default type value purpose package module size owner date version unit units format notes
    result since action effect location contact price limit path
    """
)
SENTENCE = re.compile(r"[.!?]\s+[A-Z]")


def line_drafts(text: str, scope: str | None, *, opening: bool) -> Iterator[Draft]:
    """Yield the questions about lines such as "Owner: Jane Doe" and "Term: the definition of a term".

    Key-value lines count at the `opening` of a document, or if most lines of a passage are such: others are often
    messages and examples.
    """
    pairs: list[Draft] = []
    lines = [clean_line(line) for line in text.splitlines()]
    for line in lines:
        found = read_inline(line)
        if found is None:
            continue
        term, value = found
        draft = definition_draft(term, value, line, scope)
        if draft is not None:
            yield draft
        elif scope is not None and ": " in line and _is_value(value) and _is_key(term):
            key = f"{term[0].lower()}{term[1:]}" if not any(letter.isupper() for letter in term[1:]) else term
            answer = value.rstrip(".")
            pairs.append(Draft(f"What is the {key}{in_scope(scope, 'of')}?", (answer,), (line,), "key and value", key))
    if opening or (len(pairs) > 2 and 2 * len(pairs) > len(lines)):
        yield from pairs


def table_drafts(text: str, scope: str | None) -> Iterator[Draft]:
    """Yield the questions about rows of tables: "name: cell; name: cell", or cells separated by "|" below a header."""
    header: list[str] = []
    lines = [line.strip() for line in text.splitlines()]
    yield from _named_row_drafts(lines, scope)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        cells = [clean_line(cell) for cell in line.strip("|").split("|")] if "|" in line else []
        if RULE.match(line):
            header = [] if "+" in line else header  # the output of a program
        elif len(cells) < 2:
            header = []
        elif not header or len(cells) != len(header):
            header = cells if _is_header(cells, following) else []
        else:
            yield from _row_drafts(header, cells, line, scope)


def _named_row_drafts(lines: list[str], scope: str | None) -> Iterator[Draft]:
    """Yield the questions about rows as the reader of documents writes them (`corpus.content.table_lines`).

    At least two rows must have the same names of columns: a single line of this form may be prose.
    """
    rows = [(line, pairs) for line in lines if (pairs := _named_cells(line))]
    headers = Counter(tuple(pairs) for _, pairs in rows)
    for line, pairs in rows:
        if headers[tuple(pairs)] > 1:
            yield from _row_drafts(list(pairs), list(pairs.values()), line, scope)


def _named_cells(line: str) -> dict[str, str]:
    """Split "name: cell; name: cell" into its pairs; empty if the line is not of this form."""
    parts = [part.partition(": ") for part in line.split("; ")]
    if len(parts) < 2 or not all(mark and 0 < len(words(name)) <= MAX_COLUMN for name, mark, _ in parts):
        return {}
    pairs = {clean_line(name): clean_line(cell) for name, _, cell in parts}
    return pairs if len(pairs) == len(parts) and all(pairs) else {}


def _is_header(cells: list[str], following: str) -> bool:
    """Whether cells name columns: there is a rule below, or they are usual names of columns."""
    if not all(cells):
        return False
    return bool(RULE.match(following)) or all(cell.split()[-1].lower() in COLUMNS for cell in cells)


def _row_drafts(header: list[str], cells: list[str], line: str, scope: str | None) -> Iterator[Draft]:
    subject, keyed = cells[0], header[0].split()[-1].lower() in KEYS
    if not subject or not 0 < len(words(subject)) <= MAX_CELL or (len(header) > 2 and not keyed):
        return
    for name, cell in zip(header[1:], cells[1:], strict=True):
        if cell and 0 < len(words(cell)) <= MAX_CELL and words(name) and cell.lower() != subject.lower():
            column = name if name.isupper() else f"{name[0].lower()}{name[1:]}"
            question = f"What is the {column} of {header[0].lower()} {subject}{in_scope(scope)}?"
            yield Draft(question, (cell.rstrip("."),), (line,), "table cell", f"{column} {subject}")


def _is_value(text: str) -> bool:
    plain = not any(sign in text for sign in "<>{}[]|$=;")
    return plain and len(text.split()) <= MAX_VALUE and not SENTENCE.search(text) and not text.endswith((":", "?"))


def _is_key(term: str) -> bool:
    return all(word.isalpha() and len(word) > 2 for word in term.split())
