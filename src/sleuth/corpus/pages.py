"""Web pages by URL from a JSONL file of any size, for agents that open search results."""

import os
import weakref
from array import array
from bisect import bisect_right
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.corpus.jsonl import corpus_batches, parse_corpus_line
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write

EXPECTED = 'a JSON object with the strings "url" and "contents"'
SUFFIX = ".urls.npy"
# The first entry identifies the file (digest of both ends, size, time of change); the others are its rows.
ENTRY = np.dtype([("digest", "<u8"), ("start", "<u8"), ("end", "<u8")])
EDGE = 1 << 20
REPORT_EVERY = 10_000

Table = NDArray[np.void]


class PageStore:
    """The pages of a JSONL file by URL, in constant memory; the last page with a given URL wins.

    Row positions are cached next to the file as NAME.urls.npy, or kept in memory if that file cannot be written.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        self._path = path
        self._entries = _load_table(path, progress)[1:]
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the pages {path} cannot be read ({error.strerror}); restore them") from error
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        """Return the number of rows, including repeated URLs."""
        return len(self._entries)

    def get(self, url: str) -> dict[str, Any] | None:
        """Return the page of a URL; `index.php/Title` also matches `index.php?title=Title`, the form ASearcher uses."""
        variants = (url.replace("index.php/", "index.php?title="), url)
        return next((page for each in dict.fromkeys(variants) if (page := self._find(each)) is not None), None)

    def _find(self, url: str) -> dict[str, Any] | None:
        digest = _digest(url)
        digests = self._entries["digest"]
        place = bisect_right(digests, digest) - 1  # numpy's searchsorted would copy the column
        while place >= 0 and int(digests[place]) == digest:
            start, end = int(self._entries[place]["start"]), int(self._entries[place]["end"])
            try:
                page = parse_corpus_line(os.pread(self._file, end - start, start))
            except (OSError, ValueError, RecursionError) as error:
                raise InputError(f"the pages {self._path} changed while in use ({error}); start again") from error
            if page.get("url") == url:
                return page
            place -= 1
        return None


def _load_table(path: Path, progress: Progress) -> Table:
    """Load the row positions from the cache if the file is unchanged; otherwise read the file and cache them."""
    if not path.is_file():
        raise InputError(f"the pages {path} do not exist; give a JSONL file with {EXPECTED} on each line")
    if path.suffix == ".gz":
        raise InputError(f"the pages {path} are compressed and cannot be read by URL; decompress them: gunzip {path}")
    cache, stamp = path.with_name(path.name + SUFFIX), _stamp(path)
    cached = _load_cache(cache)
    if cached is not None and cached[0] == stamp:
        return cached
    table = np.append(stamp, _read_table(path, progress))
    try:
        with atomic_write(cache) as temporary, temporary.open("wb") as file:
            np.save(file, table)
    except (InputError, OSError):  # the folder is read-only
        return table
    return open_array(cache)


def _load_cache(cache: Path) -> Table | None:
    if not os.path.isfile(cache):  # noqa: PTH113 - a name that is too long is not an error here
        return None
    try:
        table: Table = open_array(cache)
    except InputError:
        return None
    return table if table.dtype == ENTRY and len(table) else None


def _stamp(path: Path) -> Table:
    status = path.stat()
    with path.open("rb") as file:
        first = file.read(EDGE)
        file.seek(max(0, status.st_size - EDGE))
        edges = sha256(first + file.read(EDGE)).digest()
    return np.array([(int.from_bytes(edges[:8], "little"), status.st_size, status.st_mtime_ns)], ENTRY)


def _read_table(path: Path, progress: Progress) -> Table:
    """Return an entry per row, ordered by digest and then by position."""
    total, position, entries = path.stat().st_size, 0, array("Q")
    lines = (line for batch in corpus_batches(path) for line in batch)
    for number, line in enumerate(lines, 1):
        if not line.isspace():
            entries.extend((_digest(_url(path, number, line)), position, position + len(line)))
        position += len(line)
        if number % REPORT_EVERY == 0 or position == total:
            progress("reading pages", position, total)
    if not entries:
        raise InputError(f"the pages {path} are empty; expected {EXPECTED} on each line")
    table = np.frombuffer(entries, np.uint64).astype("<u8").view(ENTRY)
    return table[np.argsort(table["digest"], kind="stable")]


def _url(path: Path, number: int, line: bytes) -> str:
    try:
        page = parse_corpus_line(line)
        for key in ("url", "contents"):
            if not isinstance(page.get(key), str):
                raise ValueError(f'"{key}" is {page[key]!r:.60}' if key in page else f'"{key}" is missing')
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: {error}; expected {EXPECTED}") from error
    url: str = page["url"]
    return url


def _digest(url: str) -> int:
    return int.from_bytes(blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
