"""Documents as corpus rows: every file is read, cut into passages and recorded, or skipped with a reason."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from sleuth.corpus.chunks import WORDS, passages
from sleuth.corpus.documents import BINARY, READERS, read_content, read_document, require_size
from sleuth.corpus.files import SourceFiles, display_name
from sleuth.corpus.isolation import IsolatedReader
from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.survey import DocumentRecord, DocumentSurvey, SkippedFile
from sleuth.runs.checksums import file_sha256

UNSUPPORTED = "not a supported kind of document"
CORPUS_ROWS = "rows of a corpus, not a document; index it separately"
ROW_SUFFIXES = (".jsonl", ".parquet")
ISOLATED_BYTES = 1 << 17  # a larger text is read in a process of its own, too; Markdown may take quadratic time

# Returns the record and the rows of a document that was read before, or None if the file is new or has changed.
Reuse = Callable[[str, int, str], tuple[DocumentRecord, list[bytes]] | None]


def read_nothing(path: str, size: int, sha256: str) -> None:
    """Reuse nothing."""
    del path, size, sha256


class DocumentRows:
    """The rows of all documents of a source; iterate first, then ask for the survey."""

    def __init__(
        self, source: SourceFiles, words: int = WORDS, progress: Progress = silent, reuse: Reuse = read_nothing
    ) -> None:
        self._source, self._words, self._progress, self._reuse = source, words, progress, reuse
        self._records: list[DocumentRecord] = []
        self._skipped = list(source.skipped)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the passages of the documents as JSON lines."""
        files = self._source.files
        names: set[str] = set()
        with IsolatedReader() as isolated:
            for done, path in enumerate(files):
                self._progress("reading documents", done, len(files))
                name = display_name(path, self._source.base)
                try:
                    if name in names:
                        raise ValueError("its name is the escaped name of another file; rename it")
                    names.add(name)
                    yield from self._rows(path, name, isolated)
                except ValueError as error:
                    self._skipped.append(SkippedFile(name, str(error)))
        self._progress("reading documents", len(files), len(files))

    @property
    def survey(self) -> DocumentSurvey:
        return DocumentSurvey(tuple(self._records), tuple(sorted(self._skipped, key=lambda file: file.path)))

    def _rows(self, path: Path, name: str, isolated: IsolatedReader) -> Iterator[bytes]:
        """Yield the rows of a document and record it; raise ValueError, before the first row, if it cannot be read."""
        if path.suffix.lower() not in READERS:
            raise ValueError(CORPUS_ROWS if path.suffix.lower() in ROW_SUFFIXES else UNSUPPORTED)
        try:
            size = path.stat().st_size
            require_size(path, size)
            sha256 = file_sha256(path)
        except OSError as error:
            raise ValueError(error.strerror or str(error)) from error
        known = self._reuse(name, size, sha256)
        if known is not None:
            self._records.append(known[0])
            yield from known[1]
            return
        risky = path.suffix.lower() in BINARY or size > ISOLATED_BYTES
        document = read_document(path, name, isolated.read if risky else read_content)
        count = 0
        for passage in passages(document, self._words):
            row = {"id": passage.id, "contents": passage.contents, **passage.extra}
            yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
            count += 1
        self._records.append(DocumentRecord(name, size, sha256, document.language, document.title, count))
