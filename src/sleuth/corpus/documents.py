"""Readers for text, Markdown, HTML and PDF files; each returns a document with title and text."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sleuth.corpus.decoding import clean, decode, decode_html
from sleuth.corpus.html import page_text, read_markup
from sleuth.corpus.markdown import plain_markdown
from sleuth.errors import MissingExtra

PARAGRAPHS = re.compile(r"\n[ \t]*+(?:\n[ \t]*+)++")
HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


@dataclass(frozen=True, slots=True)
class Document:
    """A file of a corpus; `name` is its path in the folder, `url` its canonical address or else the name.

    `text` has one paragraph per line; `headings` are the numbers of the lines that are headings.
    """

    name: str
    title: str
    url: str
    text: str
    headings: frozenset[int] = frozenset()


class _Content(NamedTuple):
    """The content of a file; `title` and `url` are empty if missing."""

    title: str
    text: str
    url: str = ""
    headings: frozenset[int] = frozenset()


def read_document(path: Path, name: str) -> Document:
    """Read a document; raise ValueError if it cannot be read or contains no text."""
    try:
        content = READERS[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except MissingExtra as error:
        error.args = (f"{name} cannot be read: {error}",)
        raise
    if not content.text.strip():
        raise ValueError("it holds no text")
    title = content.title or _title_from_name(Path(name))
    return Document(name, title, content.url or name, content.text, content.headings)


def _read_text(path: Path) -> _Content:
    return _Content("", _join_wrapped_lines(decode(path.read_bytes())))


def _read_markdown(path: Path) -> _Content:
    title, text, headings = plain_markdown(decode(path.read_bytes()))
    return _Content(title, text, headings=headings)


def _read_html(path: Path) -> _Content:
    source = decode_html(path.read_bytes())
    canonical = read_markup(source).canonical
    title, text = page_text(source, canonical or None)
    return _Content(title, text, canonical)


def _read_pdf(path: Path) -> _Content:
    try:
        import pypdf
    except ImportError as error:
        raise MissingExtra("pypdf", "documents") from error
    # pypdf's warnings do not help the user; unreadable files are reported as skipped.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted")
        pages = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Exception as error:  # a damaged file can raise almost any type of error
        reason = " ".join(str(error).split())
        if type(error) is not ValueError or not reason:
            reason = f"not a readable PDF ({reason or type(error).__name__})"
        raise ValueError(reason) from error
    text = HYPHEN.sub("", clean("\n".join(pages)))
    return _Content(" ".join(clean(str(title or "")).split()), _join_wrapped_lines(text))


READERS: dict[str, Callable[[Path], _Content]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
}


def _join_wrapped_lines(text: str) -> str:
    """Join the lines of each paragraph; a blank line ends a paragraph."""
    blocks = (" ".join(block.split()) for block in PARAGRAPHS.split("\n".join(text.splitlines())))
    return "\n".join(filter(None, blocks))


def _title_from_name(path: Path) -> str:
    words = " ".join(re.sub(r"[_\-.\s]+", " ", path.stem).split())
    return words[:1].upper() + words[1:] if words else path.name
