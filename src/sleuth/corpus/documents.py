"""Documents of a folder: text, Markdown, HTML and PDF files as a title and a text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sleuth.corpus.decoding import decoded, decoded_page
from sleuth.corpus.markdown import plain_markdown
from sleuth.corpus.markup import read_markup
from sleuth.corpus.page_text import page_text
from sleuth.corpus.pdf import pdf_text
from sleuth.errors import MissingExtra

PARAGRAPHS = re.compile(r"\n[ \t]*+(?:\n[ \t]*+)++")


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read; `name` is its path in the folder, `url` its own address or else the name.

    `headings` are the numbers of the lines of its text that are known to be headings.
    """

    name: str
    title: str
    url: str
    text: str
    headings: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds; empty where it does not say. The text has a paragraph a line."""

    title: str
    text: str
    url: str = ""
    headings: frozenset[int] = frozenset()


def read_document(path: Path, name: str) -> Document:
    """One document; a ValueError says why there is nothing to read in it."""
    try:
        content = READERS[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except MissingExtra as error:
        error.args = (f"{name} cannot be read: {error}",)
        raise
    if not content.text.strip():
        raise ValueError("it holds no text")
    title = content.title or _words_of(Path(name))
    return Document(name, title, content.url or name, content.text, content.headings)


def _text(path: Path) -> _Content:
    return _Content("", _unwrapped(decoded(path.read_bytes())))


def _markdown(path: Path) -> _Content:
    title, text, headings = plain_markdown(decoded(path.read_bytes()))
    return _Content(title, text, headings=headings)


def _page(path: Path) -> _Content:
    source = decoded_page(path.read_bytes())
    canonical = read_markup(source).canonical
    title, text = page_text(source, canonical or None)
    return _Content(title, text, canonical)


def _pdf(path: Path) -> _Content:
    title, text = pdf_text(path)
    return _Content(title, _unwrapped(text))


READERS: dict[str, Callable[[Path], _Content]] = {
    ".txt": _text,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _page,
    ".htm": _page,
    ".pdf": _pdf,
}


def _unwrapped(text: str) -> str:
    """Paragraphs set apart by blank lines, each as one line."""
    blocks = (" ".join(block.split()) for block in PARAGRAPHS.split("\n".join(text.splitlines())))
    return "\n".join(filter(None, blocks))


def _words_of(path: Path) -> str:
    """The name of a file in words."""
    words = " ".join(re.sub(r"[_\-.\s]+", " ", path.stem).split())
    return words[:1].upper() + words[1:] if words else path.name
