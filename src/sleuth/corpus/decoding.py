"""Bytes as text, whatever their encoding: byte order mark, UTF-8, the encoding a page names, else Latin-1."""

import codecs
import re

# UTF-32 first: its little-endian mark begins with that of UTF-16.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
DECLARED = re.compile(rb"""charset\s{0,4}=\s{0,4}["']?\s{0,4}([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
HEAD = 4096  # where a page must name its encoding
# Pages that say Latin-1 mean Windows-1252, as the HTML standard has it.
MEANT = {"iso8859-1": "cp1252", "ascii": "cp1252"}


def decoded(content: bytes) -> str:
    """The text of a file, without byte order mark, NULs and halves of surrogate pairs; never fails."""
    marked = next((encoding for mark, encoding in MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        return clean(content.decode(marked, "replace"))
    try:
        return clean(content.decode("utf-8"))
    except UnicodeDecodeError:
        return clean(content.decode("latin-1"))


def decoded_page(content: bytes) -> str:
    """The text of an HTML file, which may name its encoding in a meta element."""
    declared = DECLARED.search(content, 0, HEAD)
    if declared is None or content.startswith(tuple(MARKS)):
        return decoded(content)
    try:
        named = codecs.lookup(declared[1].decode("ascii")).name
        return clean(content.decode(MEANT.get(named, named)))
    except (LookupError, ValueError):
        return decoded(content)


def clean(text: str) -> str:
    """A text that every encoder and parser takes, its lines ended as ours."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return lines.encode("utf-8", "replace").decode("utf-8")
