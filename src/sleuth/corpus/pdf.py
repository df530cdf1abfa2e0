"""PDF files as text, read by pypdf."""

import logging
import re
from pathlib import Path

from sleuth.corpus.content import Content
from sleuth.corpus.decoding import clean
from sleuth.corpus.plaintext import plain_text
from sleuth.errors import MissingExtra

HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


def read_pdf(path: Path) -> Content:
    """Return the text of all pages; raise ValueError if the file is damaged or encrypted."""
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
    content = plain_text(HYPHEN.sub("", clean("\n".join(pages))))
    named = " ".join(clean(str(title or "")).split())
    return Content(named or content.title, content.text, headings=content.headings)
