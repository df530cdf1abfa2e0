"""Office files and e-books: Word, PowerPoint and Excel by the libraries made for them, EPUB by our HTML reader."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from sleuth.corpus.content import Content, TextLines, choose_title
from sleuth.corpus.decoding import clean, decode_html
from sleuth.corpus.html import ATTRIBUTE, unescape_text
from sleuth.corpus.html_document import read_html
from sleuth.errors import MissingExtra

LARGEST_ARCHIVE = 256 << 20  # bytes, decompressed; a few kilobytes can decompress to gigabytes
HEADING = re.compile(r"heading ([1-9])")
ROOT_FILE = re.compile(r"<rootfile\b[^<>]{1,1000}>")
ITEM = re.compile(r"<(?:\w{1,20}:)?item\b[^<>]{1,4000}>")
ITEM_REFERENCE = re.compile(r"<(?:\w{1,20}:)?itemref\b[^<>]{1,4000}>")
BOOK_TITLE = re.compile(r"<dc:title[^<>]{0,200}>([^<]{1,1000})<")


def read_office_file(path: Path) -> Content:
    """Read a .docx, .pptx, .xlsx or .epub file; raise ValueError if it is damaged or too large."""
    try:
        with ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (BadZipFile, ValueError, RuntimeError) as error:
        raise ValueError(f"not a readable {path.suffix.lower()} file ({error})") from error
    if size > LARGEST_ARCHIVE:
        limit = f"{LARGEST_ARCHIVE >> 20} MiB"
        raise ValueError(f"it decompresses to {size >> 20:,} MiB, more than the limit of {limit}; split it")
    try:
        return _READERS[path.suffix.lower()](path)
    except (MissingExtra, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise almost any type of error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"not a readable {path.suffix.lower()} file ({reason})") from error


def _read_word(path: Path) -> Content:
    try:
        import docx
    except ImportError as error:
        raise MissingExtra("python-docx", "documents") from error
    document: Any = docx.Document(str(path))
    text, title = TextLines(), ""
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            _add_rows(text, ([_words(cell.text) for cell in row.cells] for row in block.rows))
            continue
        words, style = _words(block.text), (block.style.name if block.style is not None else "").lower()
        if found := HEADING.match(style):
            text.add_heading(words, int(found[1]) + 1)
        elif style == "title":
            title = title or words
            text.add_heading(words, 1)
        else:
            text.add(words)
    return text.content(title or _words(document.core_properties.title))


def _read_slides(path: Path) -> Content:
    try:
        import pptx
    except ImportError as error:
        raise MissingExtra("python-pptx", "documents") from error
    presentation: Any = pptx.Presentation(str(path))
    text = TextLines()
    for slide in presentation.slides:
        title = slide.shapes.title
        if title is not None:
            text.add_heading(_words(title.text_frame.text), 1)
        for shape in _shapes(slide.shapes):
            if getattr(shape, "has_table", False):
                _add_rows(text, ([_words(cell.text) for cell in row.cells] for row in shape.table.rows))
            elif shape.has_text_frame and (title is None or shape.shape_id != title.shape_id):
                text.add(*(_words(paragraph.text) for paragraph in shape.text_frame.paragraphs))
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            text.add(*map(_words, slide.notes_slide.notes_text_frame.text.splitlines()))
    title = _words(presentation.core_properties.title).removeprefix("PowerPoint Presentation")
    return text.content(title or choose_title(text.content()))


def _shapes(shapes: Iterable[Any]) -> Iterator[Any]:
    """Yield shapes, those of groups included."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape


def _read_workbook(path: Path) -> Content:
    try:
        import openpyxl
    except ImportError as error:
        raise MissingExtra("openpyxl", "documents") from error
    # Read-only: rows are streamed. Values as last calculated, not formulas.
    workbook: Any = openpyxl.load_workbook(path, read_only=True, data_only=True)
    text = TextLines()
    for sheet in workbook.worksheets:
        text.add_heading(_words(sheet.title), 1)
        _add_rows(text, ([_words(cell) for cell in row] for row in sheet.iter_rows(values_only=True)))
    return text.content(_words(workbook.properties.title))


def _read_book(path: Path) -> Content:
    with ZipFile(path) as archive:
        container = clean(archive.read("META-INF/container.xml").decode("utf-8", "replace"))
        package = next(filter(None, (_attributes(tag).get("full-path") for tag in ROOT_FILE.findall(container))))
        manifest = clean(archive.read(package).decode("utf-8", "replace"))
        items = {item.get("id"): item for item in map(_attributes, ITEM.findall(manifest))}
        text = TextLines()
        for reference in map(_attributes, ITEM_REFERENCE.findall(manifest)):
            item = items.get(reference.get("idref"), {})
            if "html" in item.get("media-type", "") and "nav" not in item.get("properties", "").split():
                name = PurePosixPath(package).parent / unquote(item.get("href", ""))
                text.extend(read_html(decode_html(archive.read(str(name)))))
    title = BOOK_TITLE.search(manifest)
    return text.content(_words(unescape_text(title[1])) if title else "")


def _attributes(tag: str) -> dict[str, str]:
    return {name.lower(): unescape_text(value.strip("\"'")) for name, value in ATTRIBUTE.findall(tag)}


def _add_rows(text: TextLines, rows: Iterable[list[str]]) -> None:
    """Add a table whose first row that is not empty is the header."""
    filled = [row for row in rows if any(row)]
    if filled:
        text.add_table(filled[0], filled[1:])


def _words(value: object) -> str:
    return " ".join(clean(str(value)).split()) if value is not None else ""


_READERS: dict[str, Callable[[Path], Content]] = {
    ".docx": _read_word,
    ".pptx": _read_slides,
    ".xlsx": _read_workbook,
    ".epub": _read_book,
}
SUFFIXES = tuple(_READERS)
