"""Bytes as text, whatever their encoding: byte order mark, the encoding named for them, UTF-8, else Latin-1."""

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
# A name that can be read byte by byte does not stand in UTF-16.
DECLARED = re.compile(rb"""charset\s{0,4}=\s{0,4}["']?\s{0,4}(?!utf-?16)([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
HEAD = 4096  # where a page must name its encoding
# How encodings of written text begin; Python's table has others, of which some take minutes for a page made for it.
WRITTEN = (
    *("ascii", "utf-8", "utf-16", "iso8859", "cp", "koi8", "mac", "tis-620"),
    *("big5", "euc", "gb", "iso2022", "johab", "shift_jis"),
)
# Pages that say Latin-1 mean Windows-1252, as the HTML standard has it.
MEANT = {"iso8859-1": "cp1252", "ascii": "cp1252"}


def decoded(content: bytes, named: str = "") -> str:
    """The text of a file, without byte order mark, NULs and halves of surrogate pairs; never fails.

    `named` is what whoever sent it calls its encoding.
    """
    marked = next((encoding for mark, encoding in MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        return clean(content.decode(marked, "replace"))
    for encoding in (_encoding(named), "utf-8"):
        try:
            return clean(content.decode(encoding))
        except UnicodeError:
            continue
    return clean(content.decode("latin-1"))


def decoded_page(content: bytes, named: str = "") -> str:
    """The text of an HTML file, which may name its encoding in a meta element."""
    declared = DECLARED.search(content, 0, HEAD)
    return decoded(content, named or (declared[1].decode("ascii") if declared else ""))


def clean(text: str) -> str:
    """A text that every encoder and parser takes, its lines ended as ours."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return lines.encode("utf-8", "replace").decode("utf-8")


def _encoding(named: str) -> str:
    """The encoding of that name, UTF-8 where it is unknown or not one of written text."""
    try:
        codec = codecs.lookup(named).name
    except (LookupError, ValueError):
        return "utf-8"
    return MEANT.get(codec, codec) if codec.startswith(WRITTEN) else "utf-8"
