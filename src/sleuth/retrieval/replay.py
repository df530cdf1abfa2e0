"""Recording of searches to a file, and replay of a recording without the index."""

import json
import os
import re
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from sleuth.errors import InputError, ReplayMiss, SearchUnavailable
from sleuth.retrieval.retriever import Retriever, SearchOutcome
from sleuth.retrieval.wire import parse_hits, scored_row
from sleuth.runs.lock import acquire

Row = dict[str, Any]

FORMAT, KIND = 1, "searches"
# A row as written. Opening a recording parses only query and k; the rest, which is most of it, is parsed on demand.
ROW = re.compile(
    rb"""\{"query":("(?:[ !#-\[\]-~]++|\\["\\bfnrt]|\\u[0-9a-f]{4})*+"),"k":(\d{1,18}),"(?:hits":\[|unavailable":")"""
)


class RecordingRetriever:
    """Appends the outcomes of a retriever to a file; `index` identifies what is searched.

    An outcome equal to the previous one for the same query and k is not written again. Rows are in the file when a
    search returns. A last line truncated by a kill is dropped when recording continues.
    """

    def __init__(self, retriever: Retriever, path: Path, index: str) -> None:
        self._retriever, self._path = retriever, path
        self._last: dict[bytes, bytes] = {}
        self._size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); choose another file") from error
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            self._load(index)
        except BaseException:
            self.close()
            raise

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        outcomes = await self._retriever.search(queries, k)
        new: dict[bytes, bytes] = {}
        lines: list[bytes] = []
        for query, outcome in zip(queries, outcomes, strict=True):
            row: Row = {"query": query, "k": k}
            if isinstance(outcome, SearchUnavailable):
                row["unavailable"] = outcome.cause
            else:  # as over HTTP, where columns of the corpus cannot collide with ours
                row["hits"] = [scored_row(hit) for hit in outcome]
            key, line = _key(query, k), _line(row)
            if new.get(key, self._last.get(key)) != _hash(line):
                new[key] = _hash(line)
                lines.append(line)
        self._append(b"".join(lines))
        self._last |= new
        return outcomes

    def close(self) -> None:
        """Stop recording; another recorder may then append to the file."""
        self._close()
        self._file = -1

    def _load(self, index: str) -> None:
        """Lock the file, read earlier rows, and drop a truncated last line."""
        acquire(self._file, f"another process is recording to {self._path}; choose another file")
        header = _line({"format": FORMAT, "kind": KIND, "index": index})
        size = os.fstat(self._file).st_size
        if size < len(header) and header.startswith(os.pread(self._file, size, 0)):
            os.ftruncate(self._file, 0)  # new, or killed while writing the first line
            self._append(header)
        with os.fdopen(self._file, "rb", closefd=False) as file:
            file.seek(0)
            self._size = _read_header(self._path, file, index)
            for start, line, key in _rows(self._path, file):
                self._last[key] = _hash(line)
                self._size = start + len(line)
        os.ftruncate(self._file, self._size)

    def _append(self, lines: bytes) -> None:
        """Append all lines or none: a partial line would make later lines unreadable."""
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise InputError(f"{self._path} cannot be written ({error.strerror}); free some space") from error
        self._size += len(lines)


class ReplayRetriever:
    """Retriever that answers from a recording only; a search that was not recorded raises ReplayMiss.

    Outcomes that changed over time are returned in recorded order; the last one repeats. Only file positions are kept
    in memory.
    """

    def __init__(self, path: Path, index: str | None) -> None:
        self._path = path
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the recording {path} cannot be read ({error.strerror}); give another file") from error
        weakref.finalize(self, os.close, descriptor)
        self._file: BinaryIO = os.fdopen(descriptor, "rb", closefd=False)
        self._next: dict[bytes, int] = {}
        self._later: defaultdict[bytes, deque[int]] = defaultdict(deque)
        _read_header(path, self._file, index)
        for start, _, key in _rows(path, self._file):
            if self._next.setdefault(key, start) != start:
                self._later[key].append(start)

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        return [self._replay(query, k) for query in queries]

    def _replay(self, query: str, k: int) -> SearchOutcome:
        key = _key(query, k)
        if (start := self._next.get(key)) is None:
            raise ReplayMiss(str(self._path), query, k)
        if later := self._later.get(key):
            self._next[key] = later.popleft()
        self._file.seek(start)
        place = f"the row at byte {start}"
        row = _parse(self._path, self._file.readline(), place)
        try:
            return SearchUnavailable(query, row["unavailable"]) if "unavailable" in row else parse_hits(row["hits"])
        except ValueError as error:
            raise InputError(f"{self._path}, {place}: {error}; restore the file") from error


def _read_header(path: Path, file: BinaryIO, index: str | None) -> int:
    line = file.readline()
    try:
        header = json.loads(line)
        kind, version, recorded = header["kind"], header["format"], header["index"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is not a recording of searches; give a file recorded by a run") from None
    if (kind, version) != (KIND, FORMAT):
        raise InputError(f"{path} is of kind {kind!r}, format {version!r}; expected {KIND!r}, format {FORMAT}")
    if index is not None and recorded != index:
        raise InputError(
            f"{path} was recorded from index {recorded!r}, not from {index!r}; use that index or another recording"
        )
    return len(line)


def _rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the position, line and key of each remaining row; a truncated last line is skipped."""
    start = file.tell()
    for number, line in enumerate(file, 2):
        if line.endswith(b"\n"):
            if (row := ROW.match(line)) and line.endswith((b"]}\n", b'"}\n')):
                yield start, line, _key(json.loads(row[1]), int(row[2]))
            else:
                parsed = _parse(path, line, f"line {number}")
                yield start, line, _key(parsed["query"], parsed["k"])
        start += len(line)


def _parse(path: Path, line: bytes, place: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    match row:
        case {"query": str(), "k": int(), "hits": list()} | {"query": str(), "k": int(), "unavailable": str()}:
            return dict(row)
    raise InputError(f"{path}, {place}, is not a row of a recording; restore the file or record to another")


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _key(query: str, k: int) -> bytes:
    return _hash(f"{k} {query}".encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
