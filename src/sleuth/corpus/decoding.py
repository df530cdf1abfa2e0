"""Decoding of bytes by byte order mark, declared encoding, UTF-8, or else Latin-1."""

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
# If the declaration is readable as ASCII, the encoding cannot be UTF-16.
DECLARED = re.compile(rb"""charset\s{0,4}=\s{0,4}["']?\s{0,4}(?!utf-?16)([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
CONTROLS = bytes(code for code in range(32) if chr(code) not in "\t\n\v\f\r\x1b\x08")
SAMPLE, MOST_CONTROLS = 1 << 16, 0.01
HEAD = 4096  # a page must declare its encoding within this many bytes
# Prefixes of text encodings; Python knows other codecs, some of which take minutes on a hostile page.
TEXT_ENCODINGS = (
    *("ascii", "utf-8", "utf-16", "iso8859", "cp", "koi8", "mac", "tis-620"),
    *("big5", "euc", "gb", "iso2022", "johab", "shift_jis"),
)
# The HTML standard decodes declared Latin-1 as Windows-1252.
ACTUAL = {"iso8859-1": "cp1252", "ascii": "cp1252"}


def decode(content: bytes, declared: str = "") -> str:
    """Decode bytes in a declared or unknown encoding, removing byte order mark, NULs and surrogates. Never fails."""
    marked = next((encoding for mark, encoding in MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        return clean(content.decode(marked, "replace"))
    for encoding in (_text_encoding(declared), "utf-8"):
        try:
            return clean(content.decode(encoding))
        except UnicodeError:
            continue
    return clean(content.decode("latin-1"))


def decode_text(content: bytes) -> str:
    """Decode a text file; raise ValueError if it is binary."""
    return decode(require_text(content))


def require_text(content: bytes) -> bytes:
    """Return the content of a text file, or raise ValueError if control characters show that it is binary.

    UTF-16 without a byte order mark, which has NULs at every other place, gets one.
    """
    if content.startswith(tuple(MARKS)):
        return content
    sample = content[:SAMPLE]
    if len(sample) > 3 and sample.count(0) > 0.3 * len(sample):
        for mark, nulls, letters in ((codecs.BOM_UTF16_LE, 1, 0), (codecs.BOM_UTF16_BE, 0, 1)):
            if sample[nulls::2].count(0) > 0.7 * len(sample) / 2 and sample[letters::2].count(0) < 0.05 * len(sample):
                return mark + content
    controls = len(sample) - len(sample.translate(None, CONTROLS))
    if controls > MOST_CONTROLS * len(sample):
        raise ValueError("it is binary, not text")
    return content


def decode_html(content: bytes, declared: str = "") -> str:
    """Decode an HTML file, which may declare its encoding in a meta element."""
    found = DECLARED.search(content, 0, HEAD)
    return decode(content, declared or (found[1].decode("ascii") if found else ""))


def clean(text: str) -> str:
    """Normalise line endings, and remove NULs and surrogates, which some encoders and parsers reject."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return lines.encode("utf-8", "replace").decode("utf-8")


def _text_encoding(declared: str) -> str:
    """Return the codec of a declared encoding; UTF-8 if the codec is unknown or not a text encoding."""
    try:
        codec = codecs.lookup(declared).name
    except (LookupError, ValueError):
        return "utf-8"
    return ACTUAL.get(codec, codec) if codec.startswith(TEXT_ENCODINGS) else "utf-8"
