"""Searches on file: every query of a run with its outcome, recorded, and answered again without the index."""

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
from sleuth.records import Hit
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.wire import parse_hits, scored_row
from sleuth.runs.lock import acquire

Outcome = list[Hit] | SearchUnavailable
Row = dict[str, Any]

FORMAT = 1
KIND = "searches"
# A row as it is written: query and k are read when a recording is opened, the rest, most of it, when it is wanted.
ROW = re.compile(
    rb"""\{"query":("(?:[ !#-\[\]-~]++|\\["\\bfnrt]|\\u[0-9a-f]{4})*+"),"k":(\d{1,18}),"(?:hits":\[|unavailable":")"""
)


class RecordingRetriever:
    """Writes what a retriever answers to a file, which it continues if it is there; `index` names what is searched.

    An outcome equal to the last one of its query and k is not written again. The rows of a search are in the file when
    it returns; a line torn by a kill is dropped when the recording is continued.
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
        self._release = weakref.finalize(self, os.close, self._file)
        try:
            self._continue(index)
        except BaseException:
            self.close()
            raise

    async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """See Retriever."""
        outcomes = await self._retriever.search(queries, k)
        fresh: dict[bytes, bytes] = {}
        lines: list[bytes] = []
        for query, outcome in zip(queries, outcomes, strict=True):
            key, line = _digest(query, k), _line(_row(query, k, outcome))
            if fresh.get(key, self._last.get(key)) != _content(line):
                fresh[key] = _content(line)
                lines.append(line)
        self._append(b"".join(lines))
        self._last |= fresh
        return outcomes

    def close(self) -> None:
        """Ends the recording; another may continue it."""
        self._release()
        self._file = -1

    def _continue(self, index: str) -> None:
        """Reads what was recorded before, and drops a torn end."""
        acquire(self._file, f"another process is recording to {self._path}; choose another file")
        header = _line({"format": FORMAT, "kind": KIND, "index": index})
        size = os.fstat(self._file).st_size
        if size < len(header) and header.startswith(os.pread(self._file, size, 0)):
            os.ftruncate(self._file, 0)  # new, or killed while its first line was written
            self._append(header)
        with os.fdopen(self._file, "rb", closefd=False) as file:
            file.seek(0)
            self._size = _check_header(self._path, file, index)
            for start, line, key in _rows(self._path, file):
                self._last[key] = _content(line)
                self._size = start + len(line)
        os.ftruncate(self._file, self._size)

    def _append(self, lines: bytes) -> None:
        """All of the lines or none: after half a line, no later one could be read."""
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise InputError(f"{self._path} cannot be written ({error.strerror}); free some space") from error
        self._size += len(lines)


class ReplayRetriever:
    """Answers from a recording alone, each search as it was answered then; one that is not there is a ReplayMiss.

    Outcomes that changed over time come in the order recorded, the last one for good. Only their places are in memory.
    """

    def __init__(self, path: Path, index: str | None) -> None:
        self._path = path
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the recording {path} cannot be read ({error.strerror}); give a file") from error
        weakref.finalize(self, os.close, descriptor)
        self._file: BinaryIO = os.fdopen(descriptor, "rb", closefd=False)
        self._next: dict[bytes, int] = {}
        self._later: defaultdict[bytes, deque[int]] = defaultdict(deque)
        _check_header(path, self._file, index)
        for start, _, key in _rows(path, self._file):
            if self._next.setdefault(key, start) != start:
                self._later[key].append(start)

    async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """See Retriever."""
        return [self._replay(query, k) for query in queries]

    def _replay(self, query: str, k: int) -> Outcome:
        key = _digest(query, k)
        start = self._next.get(key)
        if start is None:
            raise ReplayMiss(str(self._path), query, k)
        if later := self._later.get(key):
            self._next[key] = later.popleft()
        self._file.seek(start)
        row = _parsed(self._path, self._file.readline(), f"the row at byte {start}")
        try:
            return SearchUnavailable(query, row["unavailable"]) if "unavailable" in row else parse_hits(row["hits"])
        except ValueError as error:
            raise InputError(f"{self._path}, the row at byte {start}: {error}; restore the file") from error


def _check_header(path: Path, file: BinaryIO, index: str | None) -> int:
    """Reads the first line, which says what the file is; returns its length."""
    line = file.readline()
    try:
        header = json.loads(line)
        kind = header["kind"], header["format"], header["index"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is not a recording of searches; give a file that a run recorded") from None
    if kind[:2] != (KIND, FORMAT):
        found = f"{kind[0]!r} of format {kind[1]!r}"
        raise InputError(f"{path} holds {found}, and this version of Sleuth reads {KIND!r} of format {FORMAT}")
    if index is not None and kind[2] != index:
        raise InputError(
            f"{path} was recorded from another index ({kind[2]!r}) than this one ({index!r}); "
            "give the index it was recorded from, or another file"
        )
    return len(line)


def _rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """The rows from here on with place and key; a last line without its end was torn by a kill and is left out."""
    start = file.tell()
    for number, line in enumerate(file, 2):
        if line.endswith(b"\n"):
            yield start, line, _key(path, line, number)
        start += len(line)


def _key(path: Path, line: bytes, number: int) -> bytes:
    if (row := ROW.match(line)) and line.endswith((b"]}\n", b'"}\n')):
        return _digest(json.loads(row[1]), int(row[2]))
    parsed = _parsed(path, line, f"line {number}")
    return _digest(parsed["query"], parsed["k"])


def _parsed(path: Path, line: bytes, place: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    match row:
        case {"query": str(), "k": int(), "hits": list()} | {"query": str(), "k": int(), "unavailable": str()}:
            return dict(row)
    raise InputError(f"{path}, {place}, is not a row of a recording; restore the file, or record again to another")


def _row(query: str, k: int, outcome: Outcome) -> Row:
    """Hits stand as on the wire: a column of the corpus may be named like one of ours."""
    if isinstance(outcome, SearchUnavailable):
        return {"query": query, "k": k, "unavailable": outcome.cause}
    return {"query": query, "k": k, "hits": [scored_row(hit) for hit in outcome]}


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _digest(query: str, k: int) -> bytes:
    return _content(f"{k} {query}".encode("utf-8", "surrogatepass"))


def _content(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()
