"""Readers for documents of every kind; each returns title, text and headings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sleuth.corpus.content import Content
from sleuth.corpus.decoding import decode_html, decode_text, require_text
from sleuth.corpus.html_document import read_html
from sleuth.corpus.languages import detect_language
from sleuth.corpus.markdown import plain_markdown
from sleuth.corpus.office import SUFFIXES as OFFICE_SUFFIXES
from sleuth.corpus.office import read_office_file
from sleuth.corpus.pdf import read_pdf
from sleuth.corpus.plaintext import delimited_table, plain_text
from sleuth.corpus.rst import restructured_text
from sleuth.corpus.source_code import SUFFIXES, read_code, read_notebook
from sleuth.errors import MissingExtra

READER = 2  # version: increase it if the text that a reader returns changes
BINARY = frozenset({".pdf", *OFFICE_SUFFIXES})
LARGEST_TEXT, LARGEST_BINARY = 32 << 20, 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Document:
    """A file of a corpus; `name` is its path in the folder, `url` its canonical address or else the name.

    `text` has one paragraph per line; `headings` maps the numbers of the lines that are headings to their levels.
    `language` is an ISO 639-1 code, or empty if it was not detected.
    """

    name: str
    title: str
    url: str
    text: str
    headings: Mapping[int, int] = field(default_factory=dict)
    language: str = ""


def read_content(path: Path) -> Content:
    """Read a file by its suffix; raise ValueError with the reason if it cannot be read."""
    try:
        return READERS[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except (ValueError, MissingExtra) as error:
        raise ValueError(str(error)) from error
    except MemoryError as error:
        raise ValueError("it needs too much memory to read; split it") from error
    except Exception as error:  # a file that no reader expects must not stop the others
        raise ValueError(f"it cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error


def read_document(path: Path, name: str, read: Callable[[Path], Content] = read_content) -> Document:
    """Return the document of a file; raise ValueError with the reason if it cannot be read or contains no text."""
    content = read(path)
    if not content.text.strip():
        raise ValueError("it holds no text")
    title = content.title or _title_from_name(Path(name))
    language = "en" if path.suffix.lower() in SUFFIXES else detect_language(content.text)
    return Document(name, title, content.url or name, content.text, content.headings, language)


def require_size(path: Path, size: int) -> None:
    """Raise ValueError if a file is too large to be read as one document."""
    limit = LARGEST_BINARY if path.suffix.lower() in BINARY else LARGEST_TEXT
    if size > limit:
        raise ValueError(f"it has {size >> 20:,} MiB, more than the limit of {limit >> 20} MiB; split it")


def _read_decoded(read: Callable[[str], Content]) -> Callable[[Path], Content]:
    """Return the reader of files whose text `read` converts."""
    return lambda path: read(decode_text(path.read_bytes()))


READERS: dict[str, Callable[[Path], Content]] = {
    ".txt": _read_decoded(plain_text),
    ".md": _read_decoded(plain_markdown),
    ".markdown": _read_decoded(plain_markdown),
    ".html": lambda path: read_html(decode_html(require_text(path.read_bytes()))),
    ".htm": lambda path: read_html(decode_html(require_text(path.read_bytes()))),
    ".rst": _read_decoded(restructured_text),
    ".csv": _read_decoded(partial(delimited_table, delimiter=",")),
    ".tsv": _read_decoded(partial(delimited_table, delimiter="\t")),
    ".ipynb": _read_decoded(read_notebook),
    ".pdf": read_pdf,
    **dict.fromkeys(OFFICE_SUFFIXES, read_office_file),
    **dict.fromkeys(sorted(SUFFIXES), _read_decoded(read_code)),
}


def _title_from_name(path: Path) -> str:
    words = " ".join(re.sub(r"[_\-.\s]+", " ", path.stem).split())
    return words[:1].upper() + words[1:] if words else path.name
