"""Office files and e-books, made by the libraries that read them or by hand."""

from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import docx
import openpyxl
import pptx
import pytest
from pptx.util import Inches

from sleuth.corpus.content import Content
from sleuth.corpus.office import read_office_file

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
PACKAGE = """<package><metadata><dc:title>A &amp; B</dc:title></metadata><manifest>
<item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="two" href="text%20two.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="one.xhtml" media-type="application/xhtml+xml"/><item id="c" href="c.css" media-type="text/css"/>
</manifest><spine>
<itemref idref="n"/><itemref idref="one"/><itemref idref="two"/><itemref idref="c"/></spine></package>"""


def test_word(tmp_path: Path) -> None:
    document: Any = docx.Document()
    document.add_heading("Handbook", 0)
    document.add_heading("Install", 1)
    document.add_paragraph("Some  words.")
    table = document.add_table(rows=0, cols=2)
    for row in (("Port", "Use"), ("443", "API"), ("53", "")):
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_heading("Linux", 2)
    document.save(tmp_path / "a.docx")
    lines = ["Handbook", "Install", "Some words.", "Port: 443; Use: API", "Port: 53", "Linux"]
    assert read_office_file(tmp_path / "a.docx") == Content("Handbook", "\n".join(lines), headings={0: 1, 1: 2, 5: 3})


def test_slides(tmp_path: Path) -> None:
    presentation: Any = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Quarter", "Revenue grew.\nCosts fell."
    slide.notes_slide.notes_text_frame.text = "A note."
    other = presentation.slides.add_slide(presentation.slide_layouts[6])
    table = other.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(1), Inches(1)).table
    for place, text in enumerate(("Region", "Sales", "North", "12")):
        table.cell(place // 2, place % 2).text = text
    presentation.save(tmp_path / "a.pptx")
    text = "Quarter\nRevenue grew.\nCosts fell.\nA note.\nRegion: North; Sales: 12"
    assert read_office_file(tmp_path / "a.pptx") == Content("Quarter", text, headings={0: 1})


def test_workbook(tmp_path: Path) -> None:
    workbook = openpyxl.Workbook()
    sheet: Any = workbook.active
    sheet.title = "People"
    for row in (("Name", None, "Born"), ("Ada", None, 1815), (None, None, None), ("Bob", "x", None)):
        sheet.append(row)
    workbook.create_sheet("Empty")
    workbook.save(tmp_path / "a.xlsx")
    text = "People\nName: Ada; Born: 1815\nName: Bob; x\nEmpty"
    assert read_office_file(tmp_path / "a.xlsx") == Content("", text, headings={0: 1, 3: 1})


def write_archive(path: Path, files: dict[str, str]) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_book(tmp_path: Path) -> None:
    pages = {f"OEBPS/{name}.xhtml": f"<h1>{name}</h1><p>Words.</p>" for name in ("nav", "one", "text two")}
    files = {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": PACKAGE, **pages}
    expected = Content("A & B", "one\nWords.\ntext two\nWords.", headings={0: 1, 2: 1})
    assert read_office_file(write_archive(tmp_path / "a.epub", files)) == expected


@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".xlsx", ".epub"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + b"\0" * 18, b"PK\x03\x04" + b"x" * 100])
def test_damaged_file_is_reported(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"a{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"not a readable \{suffix} file"):
        read_office_file(tmp_path / f"a{suffix}")


def test_archive_that_decompresses_to_too_much_is_reported(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.docx", "w", ZIP_DEFLATED) as archive, archive.open("word/document.xml", "w") as file:
        for _ in range(300):
            file.write(b" " * (1 << 20))
    with pytest.raises(ValueError, match="decompresses to 300 MiB, more than the limit of 256 MiB"):
        read_office_file(tmp_path / "a.docx")
