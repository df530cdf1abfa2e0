"""Folders of hostile files: every file is indexed or named with a reason, in bounded memory and time.

`python tests/unit/corpus/test_document_rows.py FOLDER COUNT` writes COUNT hostile files, for a run by hand.
"""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from sleuth.corpus.passages import stream
from sleuth.corpus.sources import plain_corpus
from sleuth.corpus.survey import read_survey

COUNT = 300
SECONDS = 120  # of CPU time; a sixth of it is needed
MEMORY = 500 << 20  # bytes
MEASURED = """
import resource, sys
from pathlib import Path
from sleuth.corpus.sources import plain_corpus

plain_corpus(Path(sys.argv[1]), Path(sys.argv[2]))
own, readers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
# ru_maxrss of this process would include the memory of pytest, which started it.
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
seconds = own.ru_utime + own.ru_stime + readers.ru_utime + readers.ru_stime
print(int(peak) << 10, readers.ru_maxrss << 10, seconds)
"""
GOOD = "# Notes {number}\n\nThe harbour of town {number} was frozen for most of the winter."


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def lying_archive() -> bytes:
    """An archive whose headers give a small size for an entry that decompresses to 20 MiB."""
    true = len(b" ") * (20 << 20)
    return zipped({"word/document.xml": b" " * true}).replace(true.to_bytes(4, "little"), (100).to_bytes(4, "little"))


def laughs() -> bytes:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    return f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{levels}]><x>&l11;</x>'.encode()


def pdf(contents: bytes, kids: str = "3 0 R", packed: bool = False) -> bytes:
    filtered = b" /Filter /FlateDecode" if packed else b""
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count 1000000 >>".encode(),
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R >>",
        b"<< /Length %d%b >>\nstream\n%b\nendstream" % (len(contents), filtered, contents),
    ]
    body = b"".join(b"%d 0 obj\n%b\nendobj\n" % (number, part) for number, part in enumerate(parts, 1))
    return b"%PDF-1.4\n" + body + b"trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n0\n%%EOF"


def hostile_contents() -> list[tuple[str, bytes]]:
    """Contents by suffix; most are made once and written many times."""
    noise = random.Random(0).randbytes(20_000)
    bomb = b"\0" * (300 << 20)
    book = {"META-INF/container.xml": b'<rootfile full-path="x.opf"/>', "x.opf": b'<item id="a" href="b"/>'}
    return [
        (".pdf", b"%PDF-1.7\n" + noise),
        (".pdf", pdf(b"BT (words) Tj ET")[:200]),
        (".pdf", pdf(b"q " * 1000, kids="2 0 R")),  # a tree of pages that contains itself
        (".pdf", pdf(zlib.compress(b"\0" * (50 << 20), 9), packed=True)),
        (".docx", zipped({"word/document.xml": bomb})),
        (".docx", lying_archive()),
        (".docx", zipped({"[Content_Types].xml": laughs()})),
        (".xlsx", zipped({"[Content_Types].xml": laughs(), "xl/workbook.xml": laughs()})),
        (".pptx", noise),
        (".epub", zipped({**book, "b": bomb[: 1 << 20]})),
        (".epub", zipped({"META-INF/container.xml": bomb})),
        (".txt.gz", gzip.compress(bomb, 9)),
        (".zip", zipped({"a.zip": zipped({"b.txt": bomb[: 1 << 20]})})),
        (".txt", noise),
        (".md", b"\x7fELF" + b"\0" * 4096),
        (".html", noise),
        (".txt", "Größe und Maß in Latin-1, ohne Zeichen anderer Art.".encode("latin-1")),
        (".txt", "Текст в кодировке, которую никто не указал.".encode("cp1251")),
        (".md", "UTF-16 without a mark of the order of its bytes.".encode("utf-16-le")),
        (".txt", "cut in the middle of a letter é".encode()[:-1]),
        (".md", b"> " * 5000),
        (".md", b"[" * 5000),
        (".md", b"| a " * 2000 + b"\n" + b"|-" * 2000 + b"\n" + b"| b " * 2000),
        (".html", b"<div>" * 20_000 + b"<table>" * 5000),
        (".html", b"<!-- " * 20_000),
        (".ipynb", b"[" * 100_000),
        (".ipynb", b'{"cells": [{"cell_type": "markdown", "source": 7}]}'),
        (".csv", b'"' + b"x," * 20_000),
        (".js", b"var a=1;" * 5000),
        (".rst", b"=== ===\n" * 5000),
        (".txt", b""),
        (".md", b" \n\t\n"),
        (".txt", b"x" * 100_000),
    ]


def write_hostile_files(folder: Path, count: int) -> tuple[int, int]:
    """Write `count` entries, some of which are good documents; return the numbers of entries and of good documents."""
    contents = hostile_contents()
    special: list[Callable[[Path], None]] = [
        lambda path: path.with_suffix(".loop").symlink_to(folder),
        lambda path: path.with_suffix(".md").symlink_to(path.with_suffix(".md")),
        lambda path: os.mkfifo(path.with_suffix(".txt")),
        lambda path: path.with_suffix(".txt").symlink_to("/etc/hostname"),
        lambda path: path.with_suffix(".txt").touch() or os.truncate(path.with_suffix(".txt"), 1 << 30),  # type: ignore[func-returns-value]
    ]
    good = 0
    for number in range(count):
        place = folder / f"{number % 50:02d}"
        place.mkdir(parents=True, exist_ok=True)
        kind = number % (len(contents) + len(special) + 1)
        if kind < len(contents):
            suffix, content = contents[kind]
            (place / f"f{number}{suffix}").write_bytes(content)
        elif kind < len(contents) + len(special):
            special[kind - len(contents)](place / f"s{number}")
        else:
            (place / f"good {number}.md").write_text(GOOD.format(number=number))
            good += 1
    return count, good


def test_hostile_files_are_indexed_or_named(tmp_path: Path) -> None:
    count, good = write_hostile_files(tmp_path / "in", COUNT)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "in"), str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS * 10)
    peak, peak_of_readers, seconds = map(float, ended.stdout.split())
    assert peak < MEMORY
    assert peak_of_readers < 2 << 30
    assert seconds < SECONDS
    survey = read_survey(tmp_path / "out")
    assert survey is not None
    named = {file.path for file in survey.skipped} | {document.path for document in survey.documents}
    assert len(named) == len(survey.skipped) + len(survey.documents) == count
    assert all(file.reason for file in survey.skipped)
    indexed = [document.path for document in survey.documents if "good" in document.path]
    assert len(indexed) == good
    reasons = " ".join(survey.reasons)
    for part in ("not a readable PDF", "decompresses to 300 MiB", "it is binary", "1,024 MiB", "leads nowhere"):
        assert part in reasons
    for passage in stream(tmp_path / "out" / "corpus.jsonl"):
        assert "\0" not in passage.contents


def test_survey_of_hostile_files_is_valid_json(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.md").write_text(GOOD.format(number=1))
    for name in (b"new\nline.md", b"\xff\xfe.pdf", b"x" * 250 + b".md"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("[](")
    plain_corpus(folder, tmp_path / "out")
    lines = (tmp_path / "out" / "skipped.jsonl").read_bytes() + (tmp_path / "out" / "documents.jsonl").read_bytes()
    assert len([json.loads(line) for line in lines.splitlines()]) == 4


if __name__ == "__main__":
    print(write_hostile_files(Path(sys.argv[1]), int(sys.argv[2])))
