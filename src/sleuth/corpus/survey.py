"""Surveys of documents: which files were read, their kinds, languages and sizes, and which were skipped and why."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write

DOCUMENTS = "documents.jsonl"
SKIPPED = "skipped.jsonl"
SHOWN_KINDS = 8

Record = TypeVar("Record", "DocumentRecord", "SkippedFile")


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document that was read: its path in the source, its size and hash, and the number of its passages."""

    path: str
    bytes: int
    sha256: str
    language: str
    title: str
    passages: int

    @property
    def kind(self) -> str:
        return Path(self.path).suffix.lower()


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder of a source that was not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentSurvey:
    """All files of a source of documents, in the order of their paths."""

    documents: tuple[DocumentRecord, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents)

    @property
    def passages(self) -> int:
        return sum(document.passages for document in self.documents)

    @property
    def kinds(self) -> dict[str, int]:
        """The number of documents of each kind, the most frequent first."""
        return dict(Counter(document.kind for document in self.documents).most_common())

    @property
    def languages(self) -> dict[str, int]:
        """The number of documents in each language, the most frequent first."""
        return dict(Counter(document.language for document in self.documents).most_common())

    @property
    def reasons(self) -> dict[str, list[str]]:
        """The skipped files by reason, the most frequent first."""
        paths: defaultdict[str, list[str]] = defaultdict(list)
        for file in self.skipped:
            paths[file.reason].append(file.path)
        return dict(sorted(paths.items(), key=lambda item: (-len(item[1]), item[0])))

    def write(self, folder: Path) -> None:
        """Write documents.jsonl and skipped.jsonl."""
        for name, records in ((DOCUMENTS, self.documents), (SKIPPED, self.skipped)):
            with atomic_write(folder / name) as path:
                lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
                path.write_text("".join(lines), encoding="utf-8")


def read_survey(folder: Path) -> DocumentSurvey | None:
    """Read the survey of an index folder; None if the index was not built from documents."""
    if not (folder / DOCUMENTS).is_file():
        return None
    return DocumentSurvey(tuple(_read(folder / DOCUMENTS, DocumentRecord)), tuple(_read(folder / SKIPPED, SkippedFile)))


def _read(path: Path, record: type[Record]) -> Iterable[Record]:
    try:
        return [record(**json.loads(line)) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is missing or damaged ({error}); build the index again") from error


def describe_survey(survey: DocumentSurvey) -> list[str]:
    """Describe the documents in a line, and the skipped files in a line for each reason."""
    kinds = [f"{count:,} {kind}" for kind, count in survey.kinds.items()]
    languages = [f"{count:,} {language}" for language, count in survey.languages.items()]
    lines = [
        f"{len(survey.documents):,} documents, {format_bytes(survey.bytes)}: {_shortened(kinds)}; "
        f"languages: {_shortened(languages)}"
    ]
    for reason, paths in survey.reasons.items():
        counted = paths[0] if len(paths) == 1 else f"{len(paths):,} files, {paths[0]} first"
        lines.append(f"not indexed: {counted}: {reason}")
    return lines


def _shortened(parts: Sequence[str]) -> str:
    more = len(parts) - SHOWN_KINDS
    return ", ".join([*parts[:SHOWN_KINDS], *([f"{more} more"] if more > 0 else [])])


def format_bytes(size: int) -> str:
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    return f"{size / 1024**power:,.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
