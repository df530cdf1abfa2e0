"""Documents of every kind as title and text, and unreadable ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from sleuth.corpus.content import Content
from sleuth.corpus.documents import Document, read_document
from sleuth.corpus.markdown import plain_markdown

MARKDOWN = """\
The *first* heading
===================

Some **bold**, _leaning_ and ~~struck~~ words with `code * kept_`, a [link](https://x.org/a_(b) "title")
that goes on, [![an image](i.png)](https://x.org), [a reference][1] and snake_case_names, 2*3*4, a < b &amp; c<br>.

> A quotation
> of two lines.

- one item
  that goes on
- [x] a *done* item
    1. a step

| head | cell |
|------|:----:|
| 1    | 2    |

```python
def f(x):
    return x * 2  # *not* markup
```
<!-- nothing
to see -->
***
## The last ##
[1]: https://x.org/1
<https://x.org/auto> \\*as is\\*
"""
PLAIN = """\
The first heading
Some bold, leaning and struck words with code * kept_, a link that goes on, an image, a reference and \
snake_case_names, 234, a < b & c.
A quotation of two lines.
one item that goes on
a done item
1. a step
head: 1; cell: 2
def f(x):
    return x * 2  # *not* markup
The last
https://x.org/auto *as is*"""


def pdf(*pages: str, title: str = "") -> bytes:
    """Build a small PDF by hand, one text per page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        shown = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET"
        parts.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * number} 0 R >>"
        )
        parts.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    parts.append(f"<< /Title ({title}) >>")
    body, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    trailer = f"<< /Size {len(parts) + 1} /Root 1 0 R /Info {len(parts)} 0 R >>"
    end = f"trailer\n{trailer}\nstartxref\n{len(body)}\n%%EOF"
    return f"{body}xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def read(folder: Path, name: str, content: bytes | str) -> Document:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_document(path, f"sub/{name}")


def test_title_of_a_text_file_is_its_name(tmp_path: Path) -> None:
    found = read(tmp_path, "my_old-notes.v2.TXT", "First line\nof a paragraph.\n \n\nSecond.\n")
    assert found == Document(
        "sub/my_old-notes.v2.TXT",
        "My old notes v2",
        "sub/my_old-notes.v2.TXT",
        "First line of a paragraph.\nSecond.",
        language="und",
    )


def test_markdown_becomes_plain_text(tmp_path: Path) -> None:
    found = read(tmp_path, "a.md", MARKDOWN)
    assert found.title == "The first heading"
    assert found.text == PLAIN
    assert [found.text.splitlines()[line] for line in sorted(found.headings)] == ["The first heading", "The last"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('---\ntags: [x]\ntitle: "In front: yes"\n---\n# Not this\n', "In front: yes"),
        ("---\ntags: [x]\n---\n## A *first* one ##\n# second\n", "A first one"),
        ("---\r\ntitle: Old lines\r\n---\r\nwords\r\n", "Old lines"),
        ("words only", "words only"),
        ("Meeting notes 1\n\nAda came.", "Meeting notes 1"),
        ("**Meeting notes** 1\nAttendees: Ada", "Meeting notes 1"),
        ("Meeting notes 1\n\n## Attendees\nAda", "Meeting notes 1"),
        ("[![build](b.svg)](https://x.org)\n\n# Project\nwords", "Project"),
        ("This is a sentence.\n\n## Attendees\nAda", "Attendees"),
        ("This is a sentence.", "Some file"),
        ("a paragraph that\ngoes on", "Some file"),
        (f"{'word ' * 15}\n\nmore", "Some file"),
        ("- an item\n- another", "Some file"),
        ("```\n# a comment in code\n```\nwords", "Some file"),
        ("# C#\nwords", "C#"),
    ],
)
def test_title_of_markdown(tmp_path: Path, text: str, title: str) -> None:
    assert read(tmp_path, "some-file.markdown", text).title == title


def test_thematic_break_is_not_front_matter() -> None:
    assert plain_markdown("---\nwords\n---\nmore") == Content("words", "words\nmore", headings={0: 2})


def test_headings_are_found_but_not_in_code() -> None:
    source = "One\n===\na\n\nTwo\n---\n# Three #\n###### Four\n# \n```\n# code\n```\n#no heading\n> ## Five"
    found = plain_markdown(source)
    assert [(found.text.splitlines()[line], level) for line, level in sorted(found.headings.items())] == [
        ("One", 1),
        ("Two", 2),
        ("Three", 1),
        ("Four", 6),
        ("Five", 2),
    ]


def test_unclosed_code_block_is_kept() -> None:
    assert plain_markdown("a\n~~~\nb *c*\n```\nd").text == "a\nb *c*\n```\nd"


def test_html_has_a_canonical_url(tmp_path: Path) -> None:
    head = '<head><title>A page</title><link rel="canonical" href="https://x.org/a"></head>'
    found = read(tmp_path, "a.html", f"<html>{head}<body><p>Some words of a page.</p></body></html>")
    assert found == Document("sub/a.html", "A page", "https://x.org/a", "Some words of a page.", language="und")
    assert read(tmp_path, "b.htm", "<p>Some words of a page.</p>").url == "sub/b.htm"


def test_pdf_pages_are_joined(tmp_path: Path) -> None:
    found = read(tmp_path, "a.pdf", pdf("One exam-\nple of", "two pages.", title="A paper"))
    assert found == Document("sub/a.pdf", "A paper", "sub/a.pdf", "One example of two pages.", language="und")
    assert read(tmp_path, "the_file.pdf", pdf("Words.")).title == "The file"


def encrypted(folder: Path, password: str) -> bytes:
    (folder / "open.pdf").write_bytes(pdf("Secret words."))
    writer = PdfWriter(clone_from=PdfReader(folder / "open.pdf"))
    writer.encrypt(password, owner_password="owner", algorithm="RC4-128")
    writer.write(folder / "closed.pdf")
    return (folder / "closed.pdf").read_bytes()


def test_encrypted_pdf_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^it is encrypted$"):
        read(tmp_path, "a.pdf", encrypted(tmp_path, "user"))
    assert read(tmp_path, "b.pdf", encrypted(tmp_path, "")).text == "Secret words."


@pytest.mark.parametrize("content", [b"", b"no pdf at all", pdf("Words.")[:100], b"%PDF-1.4\n%%EOF"])
def test_damaged_pdf_is_reported(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"PDF"):
        read(tmp_path, "a.pdf", content)


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", " \n"), ("a.md", "---\n"), ("a.html", "<p>"), ("a.pdf", pdf(""))]
)
def test_document_without_text_is_reported(tmp_path: Path, name: str, content: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"^it holds no text$"):
        read(tmp_path, name, content)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_document(tmp_path / "a.txt", "a.txt")


@pytest.mark.parametrize(("library", "name"), [("pypdf", "a.pdf")])
def test_missing_extra_is_a_reason(tmp_path: Path, library: str, name: str) -> None:
    (tmp_path / name).write_bytes(pdf("Words."))
    script = (
        f"import sys; sys.modules['{library}'] = None\n"
        "from pathlib import Path\n"
        "from sleuth.corpus.documents import read_document\n"
        f"try:\n    read_document(Path(sys.argv[1]), 'docs/{name}')\n"
        "except ValueError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == f"{library} is not installed; install it with: pip install 'sleuth[documents]'\n"
