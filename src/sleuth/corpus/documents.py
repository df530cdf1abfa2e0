"""Readers for text, Markdown, HTML and PDF files; each returns a document with title and text."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sleuth.corpus.content import Content
from sleuth.corpus.decoding import clean, decode, decode_html
from sleuth.corpus.html_document import read_html
from sleuth.corpus.languages import detect_language
from sleuth.corpus.markdown import plain_markdown
from sleuth.corpus.plaintext import delimited_table, plain_text
from sleuth.corpus.rst import restructured_text
from sleuth.corpus.source_code import SUFFIXES, read_code, read_notebook
from sleuth.errors import MissingExtra

READER = 2  # version: increase it if the text that a reader returns changes
HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


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


def read_document(path: Path, name: str) -> Document:
    """Read a document; raise ValueError with the reason if it cannot be read or contains no text."""
    suffix = path.suffix.lower()
    try:
        content = READERS[suffix](path)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except (ValueError, MissingExtra) as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # a file that no reader expects must not stop the others
        raise ValueError(f"it cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error
    if not content.text.strip():
        raise ValueError("it holds no text")
    title = content.title or _title_from_name(Path(name))
    language = "en" if suffix in SUFFIXES else detect_language(content.text)
    return Document(name, title, content.url or name, content.text, content.headings, language)


def _read_html(path: Path) -> Content:
    return read_html(decode_html(path.read_bytes()))


def _read_pdf(path: Path) -> Content:
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
    content = plain_text(text)
    named = " ".join(clean(str(title or "")).split())
    return Content(named or content.title, content.text, headings=content.headings)


def _read_decoded(read: Callable[[str], Content]) -> Callable[[Path], Content]:
    """Return the reader of files whose text `read` converts."""
    return lambda path: read(decode(path.read_bytes()))


READERS: dict[str, Callable[[Path], Content]] = {
    ".txt": _read_decoded(plain_text),
    ".md": _read_decoded(plain_markdown),
    ".markdown": _read_decoded(plain_markdown),
    ".html": _read_html,
    ".htm": _read_html,
    ".rst": _read_decoded(restructured_text),
    ".csv": _read_decoded(partial(delimited_table, delimiter=",")),
    ".tsv": _read_decoded(partial(delimited_table, delimiter="\t")),
    ".ipynb": _read_decoded(read_notebook),
    ".pdf": _read_pdf,
    **dict.fromkeys(sorted(SUFFIXES), _read_decoded(read_code)),
}


def _title_from_name(path: Path) -> str:
    words = " ".join(re.sub(r"[_\-.\s]+", " ", path.stem).split())
    return words[:1].upper() + words[1:] if words else path.name
