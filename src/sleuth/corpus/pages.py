"""Web pages by url, from a JSONL file of any size, for agents that open what they found."""

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
from sleuth.corpus.passages import lines, parse_object
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write

EXPECTED = 'a JSON object with the strings "url" and "contents"'
ENDING = ".urls.npy"
# The first entry stands for the file itself (digest of its ends, size, time of change), the others for its rows.
ENTRY = np.dtype([("digest", "<u8"), ("start", "<u8"), ("end", "<u8")])
EDGE = 1 << 20
REPORT_EVERY = 10_000

Table = NDArray[np.void]


class PageStore:
    """The pages of a JSONL file by url, in constant memory; of pages with one url the last counts.

    Their places are written beside the file as NAME.urls.npy, once, or held in memory where nothing can be written.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        self._path = path
        self._entries = _table(path, progress)[1:]
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"the pages {path} cannot be read ({error.strerror}); put them back") from error
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        """Rows of the file, repeated urls too."""
        return len(self._entries)

    def get(self, url: str) -> dict[str, Any] | None:
        """The page of a url; `index.php/Title` is read as `index.php?title=Title`, the names in ASearcher's pages."""
        asked = (url.replace("index.php/", "index.php?title="), url)
        return next((page for each in dict.fromkeys(asked) if (page := self._page(each)) is not None), None)

    def _page(self, url: str) -> dict[str, Any] | None:
        digest = _digest(url)
        digests = self._entries["digest"]
        place = bisect_right(digests, digest) - 1  # numpy's own search would copy a column of a table
        while place >= 0 and int(digests[place]) == digest:
            page = self._row(self._entries[place])
            if page.get("url") == url:
                return page
            place -= 1
        return None

    def _row(self, entry: np.void) -> dict[str, Any]:
        start, end = int(entry["start"]), int(entry["end"])
        try:
            return parse_object(os.pread(self._file, end - start, start))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"the pages {self._path} changed while in use ({error}); start again") from error


def _table(path: Path, progress: Progress) -> Table:
    """Where the pages are: as written before, if the file is the same, else read from it and written."""
    if not path.is_file():
        raise InputError(f"the pages {path} do not exist; give a JSONL file with on each line {EXPECTED}")
    if path.suffix == ".gz":
        raise InputError(f"the pages {path} are compressed and cannot be read by url; unpack them: gunzip {path}")
    beside, stamp = path.with_name(path.name + ENDING), _stamp(path)
    kept = _kept(beside)
    if kept is not None and kept[0] == stamp:
        return kept
    table = np.append(stamp, _read(path, progress))
    try:
        with atomic_write(beside) as temporary, temporary.open("wb") as file:
            np.save(file, table)
    except (InputError, OSError):  # a folder of someone else's: what is known stays in memory
        return table
    return open_array(beside)


def _kept(beside: Path) -> Table | None:
    """The table beside the pages; None where there is none that can be used."""
    if not os.path.isfile(beside):  # noqa: PTH113 - a name too long is no file, not an error
        return None
    try:
        table: Table = open_array(beside)
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


def _read(path: Path, progress: Progress) -> Table:
    """An entry a row, ordered by digest, rows with the same one in the order of the file."""
    total, position, entries = path.stat().st_size, 0, array("Q")
    for number, line in enumerate(lines(path), 1):
        if not line.isspace():
            entries.extend((_digest(_url(path, number, line)), position, position + len(line)))
        position += len(line)
        if number % REPORT_EVERY == 0 or position == total:
            progress("reading pages", position, total)
    if not entries:
        raise InputError(f"the pages {path} are empty; expected on each line {EXPECTED}")
    table = np.frombuffer(entries, np.uint64).astype("<u8").view(ENTRY)
    return table[np.argsort(table["digest"], kind="stable")]


def _url(path: Path, number: int, line: bytes) -> str:
    try:
        page = parse_object(line)
        for key in ("url", "contents"):
            if not isinstance(page.get(key), str):
                raise ValueError(f'"{key}" is {page[key]!r:.60}' if key in page else f'"{key}" is missing')
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {number}: {error}; expected {EXPECTED}") from error
    url: str = page["url"]
    return url


def _digest(url: str) -> int:
    return int.from_bytes(blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
