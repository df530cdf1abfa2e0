"""Surveys of documents: counts, reasons, and the files they are stored in."""

from pathlib import Path

import pytest

from sleuth.corpus.survey import (
    DocumentRecord,
    DocumentSurvey,
    SkippedFile,
    describe_survey,
    format_bytes,
    read_survey,
)
from sleuth.errors import InputError

SURVEY = DocumentSurvey(
    (
        DocumentRecord("a.md", 2000, "00", "en", "A\u2028b", 2),
        DocumentRecord("b.MD", 48, "01", "de", "B", 1),
        DocumentRecord("c.txt", 1024, "02", "en", "C", 3),
    ),
    (SkippedFile("d.pdf", "damaged"), SkippedFile("e.png", "unsupported"), SkippedFile("f.png", "unsupported")),
)


def test_counts() -> None:
    assert (SURVEY.bytes, SURVEY.passages) == (3072, 6)
    assert list(SURVEY.kinds.items()) == [(".md", 2), (".txt", 1)]
    assert list(SURVEY.languages.items()) == [("en", 2), ("de", 1)]
    assert list(SURVEY.reasons.items()) == [("unsupported", ["e.png", "f.png"]), ("damaged", ["d.pdf"])]


def test_description() -> None:
    assert describe_survey(SURVEY) == [
        "3 documents, 3.0 KiB: 2 .md, 1 .txt; languages: 2 en, 1 de",
        "not indexed: 2 files, e.png first: unsupported",
        "not indexed: d.pdf: damaged",
    ]
    many = tuple(DocumentRecord(f"a.k{number}", 1, "", "en", "", 1) for number in range(10))
    assert "1 .k7, 2 more; languages: 10 en" in describe_survey(DocumentSurvey(many, ()))[0]


def test_survey_is_stored(tmp_path: Path) -> None:
    assert read_survey(tmp_path) is None
    SURVEY.write(tmp_path)
    assert read_survey(tmp_path) == SURVEY
    (tmp_path / "skipped.jsonl").write_text("{")
    with pytest.raises(InputError, match=r"skipped\.jsonl is missing or damaged"):
        read_survey(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (3 << 42, "12,288.0 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text
