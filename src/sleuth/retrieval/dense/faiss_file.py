"""Published FAISS indexes: a single file, or `part_*` pieces that are read without being joined."""

import hashlib
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval.dense import ann

VECTORS = "vectors.npy"
UNFINISHED = "importing."
BLOCK = 1 << 25
EDGE = 1 << 20
PIECE = re.compile(r"part_[A-Za-z0-9]+")
UNIT_TOLERANCE = 1e-2  # tolerated deviation from norm 1, from half precision and imprecise normalisation

Kind = Literal["flat", "hnsw", "other"]
Metric = Literal["inner product", "l2"]

# Type code; dimensions, count, two unused numbers, trained, metric. Then the parts of the type, in which an array is
# its length followed by its items.
HEADER = struct.Struct("<4siqqqbi")
LENGTH = struct.Struct("<Q")
METRICS: dict[int, Metric] = {0: "inner product", 1: "l2"}
KINDS: dict[bytes, Kind] = {
    **dict.fromkeys((b"IxFI", b"IxF2", b"IxFl"), "flat"),
    **dict.fromkeys((b"IHNf", b"IHNs", b"IHNp"), "hnsw"),
    **dict.fromkeys((b"IwFl", b"IwPQ", b"IwSq", b"IwPf"), "other"),
}
# A graph is five arrays, here by the bytes per item, and five numbers; the index with its vectors follows.
GRAPH_ITEMS, GRAPH_NUMBERS = (8, 4, 4, 8, 4), 20


class JoinedFiles:
    """Read-only view of several files as one concatenated file."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        try:
            sizes = [file.stat().st_size for file in files]
        except OSError as error:
            raise InputError(f"the FAISS file {error.filename} is unreadable ({error.strerror}); restore it") from error
        self._starts = [0, *accumulate(sizes)]
        self.size = self._starts[-1]

    def __str__(self) -> str:
        first, *others = self.files
        return f"{first} and {len(others)} more" if others else str(first)

    def read(self, start: int, size: int) -> bytes:
        """Read exactly `size` bytes from `start`; raise InputError if there are fewer."""
        self.require_size(start + size, or_more=True)
        parts = []
        while size:
            number = bisect_right(self._starts, start) - 1
            path, wanted = self.files[number], min(size, self._starts[number + 1] - start)
            try:
                with path.open("rb") as file:
                    file.seek(start - self._starts[number])
                    part = file.read(wanted)
            except OSError as error:
                raise InputError(f"{path} is unreadable ({error.strerror}); restore it") from error
            if len(part) < wanted:
                raise InputError(f"{path} became shorter while it was read; download it again")
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def read_length(self, start: int) -> int:
        return int(LENGTH.unpack(self.read(start, LENGTH.size))[0])

    def require_size(self, size: int, or_more: bool = False) -> None:
        """Raise InputError unless the files have `size` bytes in total."""
        if self.size < size or (self.size > size and not or_more):
            raise InputError(
                f"the FAISS index {self} has {self.size:,} bytes, expected {'at least ' * or_more}{size:,}; "
                "download it again, with every piece"
            )


@dataclass(frozen=True, slots=True)
class FaissFile:
    """The header of a FAISS index; its plain vectors start at byte `start` (0 if there are none)."""

    kind: Kind
    dimensions: int
    count: int
    metric: Metric
    files: tuple[Path, ...]
    bytes: int
    start: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the plain vectors."""
        return self.start + 4 * self.count * self.dimensions


def pieces(path: Path) -> list[Path]:
    """List the files of an index in order; `path` is a file, a folder of `part_*` pieces, or one of the pieces."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a FAISS file, or the folder of its part_* pieces")
    if path.is_file() and not PIECE.fullmatch(path.name):
        return [path]
    folder = path if path.is_dir() else path.parent
    found = [file for file in folder.iterdir() if PIECE.fullmatch(file.name) and file.is_file()]
    if not found:
        raise InputError(f"the folder {path} has no part_* pieces; give a FAISS file, or the folder of its pieces")
    # Shorter names first: part_9 comes before part_10.
    return sorted(found, key=lambda file: (len(file.name), file.name))


def describe(files: Sequence[Path]) -> FaissFile:
    """Read the header of an index; raise InputError if the file is not an index, is truncated, or is not searchable."""
    joined = JoinedFiles(files)
    if joined.read(0, 4) in (b"IxMp", b"IxM2"):  # id maps
        described = _read_header(joined, HEADER.size)
        _require_row_ids(joined, described)
        return described
    described = _read_header(joined, 0)
    match described.kind:
        case "flat":
            joined.require_size(described.end)
            return described
        case "hnsw":
            position = HEADER.size
            for width in GRAPH_ITEMS:
                position += LENGTH.size + width * joined.read_length(position)
            position += GRAPH_NUMBERS
            if KINDS.get(joined.read(position, 4)) == "flat":
                vectors = _read_header(joined, position)
                joined.require_size(vectors.end)
                return replace(described, start=vectors.start)
    return replace(described, start=0)


def plain_vectors(described: FaissFile, rows: Sequence[int]) -> list[NDArray[np.float32]]:
    """Read the vectors of `rows`; empty if the index does not store vectors uncompressed."""
    joined, size = JoinedFiles(described.files), 4 * described.dimensions
    wanted = rows if described.start else ()
    return [np.frombuffer(joined.read(described.start + size * row, size), "<f4") for row in wanted]


def import_flat(files: Sequence[Path], out: Path, progress: Progress = silent) -> FaissFile:
    """Write the vectors of a flat index to `out`/vectors.npy in half precision; an interrupted import resumes.

    Raises InputError for non-finite vectors, and for an L2 index whose vectors do not have unit length: the inner
    product would rank them differently.
    """
    described = describe(files)
    if described.kind != "flat":
        raise InputError(f"{files[0]} is a FAISS index without plain vectors, expected a Flat one; search it as it is")
    unfinished = out / f"{UNFINISHED}{edges(files)[:12]}"
    try:
        with unfinished.open("ab") as file:
            _copy(described, file, progress)
            os.fsync(file.fileno())
        unfinished.replace(out / VECTORS)
        for leftover in out.glob(f"{UNFINISHED}*"):
            leftover.unlink()
    except OSError as error:
        raise InputError(f"{out / VECTORS} cannot be written ({error.strerror}); free some space") from error
    return described


def open_index(files: Sequence[Path]) -> Any:
    """Open an index for `Ann`: a single file is memory-mapped, pieces are read into memory."""
    if len(files) == 1:
        return ann.read(files[0])
    joined, position = JoinedFiles(files), 0

    def read_next(size: int) -> bytes:
        nonlocal position
        part = joined.read(position, min(size, joined.size - position))
        position += len(part)
        return part

    return ann.read(read_next)


def edges(files: Sequence[Path]) -> str:
    """Hash the size, the start and the end of every file."""
    digest = hashlib.sha256()
    for file in files:
        joined = JoinedFiles([file])
        size = min(EDGE, joined.size)
        digest.update(b"%d " % joined.size + joined.read(0, size) + joined.read(joined.size - size, size))
    return digest.hexdigest()


def _read_header(joined: JoinedFiles, position: int) -> FaissFile:
    code = joined.read(position, 4)
    if code not in KINDS:
        raise InputError(
            f"{joined} starts with {code!r}, expected the type code of a Flat, HNSW or IVF index of FAISS; "
            "give such an index, with its first piece first"
        )
    _, dimensions, count, _, _, _, metric = HEADER.unpack(joined.read(position, HEADER.size))
    if dimensions < 1 or count < 1 or metric not in METRICS:
        raise InputError(
            f"the FAISS index {joined} has {count} vectors of {dimensions} dimensions with metric {metric}, expected "
            "inner product (0) or L2 (1); give another index"
        )
    start = position + HEADER.size + LENGTH.size
    described = FaissFile(KINDS[code], dimensions, count, METRICS[metric], joined.files, joined.size, start)
    if described.kind == "flat" and (numbers := joined.read_length(start - LENGTH.size)) != count * dimensions:
        raise InputError(
            f"the FAISS index {joined} is inconsistent: {count} vectors of {dimensions} dimensions in an array of "
            f"{numbers}; download it again"
        )
    return described


def _require_row_ids(joined: JoinedFiles, inner: FaissFile) -> None:
    """Raise InputError unless an id map assigns 0, 1, 2, ... to the vectors of a flat index."""
    if inner.kind != "flat":
        raise InputError(f"the FAISS index {joined} is an id map over type {inner.kind}; give the index without it")
    position = inner.end + LENGTH.size
    joined.require_size(position + 8 * inner.count)
    step = BLOCK // 8
    for start in range(0, inner.count, step):
        ids = np.frombuffer(joined.read(position + 8 * start, 8 * min(step, inner.count - start)), "<i8")
        wrong = np.flatnonzero(ids != np.arange(start, start + len(ids)))
        if wrong.size:
            raise InputError(
                f"the FAISS index {joined} gives vector {start + wrong[0]} the id {ids[wrong[0]]}, expected the row "
                "number; give an index without custom ids, in the order of the corpus"
            )


def _copy(flat: FaissFile, file: BinaryIO, progress: Progress) -> None:
    buffer, joined = BytesIO(), JoinedFiles(flat.files)
    shape = {"descr": "<f2", "fortran_order": False, "shape": (flat.count, flat.dimensions)}
    np.lib.format.write_array_header_1_0(buffer, shape)
    header = buffer.getvalue()
    done = max(0, file.tell() - len(header)) // (2 * flat.dimensions)
    file.truncate(len(header) + 2 * done * flat.dimensions if done else 0)
    if not done:
        file.write(header)
    step = max(1, BLOCK // (4 * flat.dimensions))
    for start in range(done, flat.count, step):
        progress("importing vectors", start, flat.count)
        rows = min(step, flat.count - start)
        numbers = joined.read(flat.start + 4 * start * flat.dimensions, 4 * rows * flat.dimensions)
        file.write(_to_half(flat, np.frombuffer(numbers, "<f4").reshape(rows, flat.dimensions), start).tobytes())
        file.flush()
    progress("importing vectors", flat.count, flat.count)


def _to_half(flat: FaissFile, vectors: NDArray[np.float32], start: int) -> NDArray[np.float16]:
    """Convert vectors to half precision; `start` is the row number of the first vector, for error messages."""
    with np.errstate(over="ignore"):
        halves = vectors.astype("<f2")
    infinite = np.flatnonzero(~np.isfinite(halves).all(axis=1))
    if infinite.size:
        raise InputError(
            f"vector {start + infinite[0]} of {flat.files[0]} has a number that is not finite in 16 bits; "
            "download or build the index again"
        )
    if flat.metric == "l2":
        norms = np.linalg.norm(vectors, axis=1)
        others = np.flatnonzero(np.abs(norms - 1) > UNIT_TOLERANCE)
        if others.size:
            raise InputError(
                f"vector {start + others[0]} of {flat.files[0]}, an L2 index, has norm {norms[others[0]]:.4g}, "
                "expected 1; give an inner-product index, or one of unit vectors"
            )
    return halves
