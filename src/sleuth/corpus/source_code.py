"""Source code and notebooks: lines as written, with definitions as headings."""

import json
import re
from typing import Any

from sleuth.corpus.content import Content, TextLines
from sleuth.corpus.markdown import plain_markdown

SUFFIXES = frozenset(
    """
    .py .pyi .js .jsx .mjs .ts .tsx .java .kt .scala .c .h .cc .cpp .hpp .cs .go .rs .rb .php .swift .sh .bash .ps1
    .sql .r .jl .lua .pl .pm .ex .exs .erl .hs .ml .dart .zig .vb .f90 .proto
    """.split()  # noqa: SIM905 - a table is read as lines
)
# Definitions of most languages: keywords, and the name that follows.
DEFINITION = re.compile(
    r"(?P<indent>[ \t]*+)(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub"
    r"|override|data|sealed|open)\s++){0,4}+(?:def|class|fn|func|function|interface|trait|impl|struct|enum|module|namespace"
    r"|object|record|protocol)\s++(?P<name>[\w.:$<]++)"
)
INDENT = 4  # columns of one level, at most
LEVELS = 6
GENERATED = 2000  # characters; source that people write has no longer lines


def read_code(source: str) -> Content:
    """Return the lines of a program; raise ValueError if it is minified or generated."""
    lines = source.expandtabs(INDENT).splitlines()
    longest = max(map(len, lines), default=0)
    if longest > GENERATED:
        raise ValueError(f"it looks generated: a line has {longest:,} characters, expected at most {GENERATED:,}")
    text = TextLines()
    for line in lines:
        if found := DEFINITION.match(line):
            level = min(len(found["indent"]) // INDENT + 1, LEVELS)
            text.headings[len(text.lines)] = level
        text.add(line.rstrip())
    return text.content()


def read_notebook(source: str) -> Content:
    """Return the Markdown and code cells of a Jupyter notebook; raise ValueError if it is none."""
    try:
        notebook: Any = json.loads(source)
        cells = notebook.get("cells") or [cell for sheet in notebook["worksheets"] for cell in sheet["cells"]]
        parts = [(cell["cell_type"], "".join(cell.get("source", cell.get("input", "")))) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"not a readable notebook ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
        ) from error
    text, title = TextLines(), ""
    for kind, cell in parts:
        if kind == "code":
            text.add(*(line.rstrip() for line in cell.splitlines()))
        else:
            content = plain_markdown(cell)
            title = title or content.title
            text.extend(content)
    return text.content(title)
