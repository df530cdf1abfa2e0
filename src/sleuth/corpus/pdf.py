"""The text of PDF files, by pypdf."""

import logging
import re
from pathlib import Path

from sleuth.corpus.decoding import clean
from sleuth.errors import MissingExtra

HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


def pdf_text(path: Path) -> tuple[str, str]:
    """Title ("" where the file names none) and text of a PDF; a ValueError says why it cannot be read."""
    try:
        import pypdf
    except ImportError as error:
        raise MissingExtra("pypdf", "documents") from error
    # Its warnings about odd files are not for the user, who hears of those that cannot be read.
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted")
        pages = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Exception as error:  # a broken file shows as an error of almost any type
        raise ValueError(_reason(error)) from error
    return " ".join(clean(str(title or "")).split()), HYPHEN.sub("", clean("\n".join(pages)))


def _reason(error: Exception) -> str:
    words = " ".join(str(error).split())
    return (
        words
        if type(error) is ValueError and words
        else f"not a PDF that can be read ({words or type(error).__name__})"
    )
