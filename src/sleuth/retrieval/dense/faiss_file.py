"""Published FAISS indexes as they are: one file, or the `part_*` pieces of one, which are never put together."""

import hashlib
import os
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval.dense import ann
from sleuth.retrieval.dense.joined import Joined

VECTORS = "vectors.npy"
UNFINISHED = "importing."
BLOCK = 1 << 25
EDGE = 1 << 20
PIECE = re.compile(r"part_[A-Za-z0-9]+")
# How far a length may be from one: what half precision and careless normalisation leave.
UNIT = 1e-2

Kind = Literal["flat", "hnsw", "other"]
Metric = Literal["inner product", "l2"]

# Four letters for the type; dimensions, count, two numbers without meaning, trained, metric. Then the parts of the
# type, in which an array is its length and its items.
HEADER = struct.Struct("<4siqqqbi")
LENGTH = struct.Struct("<Q")
METRICS: dict[int, Metric] = {0: "inner product", 1: "l2"}
KINDS: dict[bytes, Kind] = {
    b"IxFI": "flat",
    b"IxF2": "flat",
    b"IxFl": "flat",
    b"IHNf": "hnsw",
    b"IHNs": "hnsw",
    b"IHNp": "hnsw",
    b"IwFl": "other",
    b"IwPQ": "other",
    b"IwSq": "other",
    b"IwPf": "other",
}
NUMBERED = (b"IxMp", b"IxM2")
# A graph is five arrays, here by the bytes of an item, and five numbers; the index with its vectors comes after them.
GRAPH_ITEMS, GRAPH_NUMBERS = (8, 4, 4, 8, 4), 20


@dataclass(frozen=True, slots=True)
class FaissFile:
    """What a FAISS index says of itself; `start` is the byte at which its plain vectors begin, 0 where it has none."""

    kind: Kind
    dimensions: int
    count: int
    metric: Metric
    files: tuple[Path, ...]
    bytes: int
    start: int


def pieces(path: Path) -> list[Path]:
    """The files of an index in order: a file; or the `part_*` pieces of a folder, any of which stands for all."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a FAISS file, or the folder of its part_* pieces")
    if path.is_file() and not PIECE.fullmatch(path.name):
        return [path]
    folder = path if path.is_dir() else path.parent
    found = [file for file in folder.iterdir() if PIECE.fullmatch(file.name) and file.is_file()]
    if not found:
        raise InputError(f"the folder {path} holds no part_* pieces; give a FAISS file, or the folder of its pieces")
    # Shorter names first: part_9 comes before part_10.
    return sorted(found, key=lambda file: (len(file.name), file.name))


def describe(files: Sequence[Path]) -> FaissFile:
    """What the index in these files is; no index, one cut short and one that cannot be searched are InputErrors."""
    joined = Joined(files)
    letters = joined.read(0, 4)
    if letters in NUMBERED:
        described = _header(joined, HEADER.size)
        _require_row_numbers(joined, described)
        return described
    described = _header(joined, 0)
    match described.kind:
        case "flat":
            joined.require(_end(described))
            return described
        case "hnsw":
            return replace(described, start=_require_whole_graph(joined))
    return replace(described, start=0)


def plain_vectors(described: FaissFile, rows: Sequence[int]) -> list[NDArray[np.float32]]:
    """Some of the vectors as they are; none where the index has not kept them plain."""
    joined, size = Joined(described.files), 4 * described.dimensions
    asked = rows if described.start else ()
    return [np.frombuffer(joined.read(described.start + size * row, size), "<f4") for row in asked]


def import_flat(files: Sequence[Path], out: Path, progress: Progress = silent) -> FaissFile:
    """Writes the vectors of a flat index to `out`/vectors.npy in half precision, a block at a time.

    Killed and started again it continues. Vectors that are no finite numbers are an InputError; so are those of an
    index by distance that have not unit length, since the inner product would order them otherwise.
    """
    described = describe(files)
    if described.kind != "flat":
        raise InputError(f"{files[0]} is a FAISS index without plain vectors, expected a Flat one; keep it as it is")
    unfinished = out / f"{UNFINISHED}{edges(files)[:12]}"
    try:
        with unfinished.open("ab") as file:
            _copy(described, file, progress)
            os.fsync(file.fileno())
        unfinished.replace(out / VECTORS)
        for leftover in out.glob(f"{UNFINISHED}*"):
            leftover.unlink()
    except OSError as error:
        raise InputError(f"{out / VECTORS} cannot be written ({error.strerror}); make room for it") from error
    return described


def open_kept(files: Sequence[Path]) -> Any:
    """The index of these files for `Ann`: a single file is mapped, pieces are read into memory once."""
    if len(files) == 1:
        return ann.read(files[0])
    return ann.read(_reader(Joined(files)))


def edges(files: Sequence[Path]) -> str:
    """A hash of the sizes and both ends of every file: another index has another."""
    digest = hashlib.sha256()
    for file in files:
        joined = Joined([file])
        size = min(EDGE, joined.size)
        digest.update(b"%d " % joined.size + joined.read(0, size) + joined.read(joined.size - size, size))
    return digest.hexdigest()


def _header(joined: Joined, position: int) -> FaissFile:
    """The index that begins at this byte."""
    letters = joined.read(position, 4)
    if letters not in KINDS:
        raise InputError(
            f"{joined} holds {letters!r} where a FAISS index names its type, expected Flat, HNSW or IVF; "
            "give such an index, with its first piece first"
        )
    _, dimensions, count, _, _, _, metric = HEADER.unpack(joined.read(position, HEADER.size))
    if dimensions < 1 or count < 1 or metric not in METRICS:
        raise InputError(
            f"the FAISS index {joined} has {count} vectors of {dimensions} dimensions by metric {metric}, expected "
            "vectors by inner product (0) or L2 (1); give another index"
        )
    start = position + HEADER.size + LENGTH.size
    described = FaissFile(KINDS[letters], dimensions, count, METRICS[metric], joined.files, joined.size, start)
    if described.kind == "flat":
        _require_all_vectors(joined, described)
    return described


def _require_all_vectors(joined: Joined, flat: FaissFile) -> None:
    numbers = _length(joined, flat.start - LENGTH.size)
    if numbers != flat.count * flat.dimensions:
        raise InputError(
            f"the FAISS index {joined} contradicts itself: {flat.count} vectors of {flat.dimensions} dimensions in an "
            f"array of {numbers}; fetch it again"
        )


def _end(flat: FaissFile) -> int:
    return flat.start + 4 * flat.count * flat.dimensions


def _length(joined: Joined, position: int) -> int:
    return int(LENGTH.unpack(joined.read(position, LENGTH.size))[0])


def _require_whole_graph(joined: Joined) -> int:
    """Where the plain vectors of a graph begin; they and its arrays fill the files. Other vectors are left to FAISS."""
    position = HEADER.size
    for width in GRAPH_ITEMS:
        position += LENGTH.size + width * _length(joined, position)
    position += GRAPH_NUMBERS
    if KINDS.get(joined.read(position, 4)) != "flat":
        return 0
    vectors = _header(joined, position)
    joined.require(_end(vectors))
    return vectors.start


def _require_row_numbers(joined: Joined, inner: FaissFile) -> None:
    """The ids given to the vectors of a flat index are 0, 1, 2 and so on."""
    if inner.kind != "flat":
        raise InputError(
            f"the FAISS index {joined} gives ids of its own to an index of type {inner.kind}; give it without"
        )
    position = _end(inner) + LENGTH.size
    joined.require(position + 8 * inner.count)
    step = BLOCK // 8
    for start in range(0, inner.count, step):
        ids = np.frombuffer(joined.read(position + 8 * start, 8 * min(step, inner.count - start)), "<i8")
        wrong = np.flatnonzero(ids != np.arange(start, start + len(ids)))
        if wrong.size:
            raise InputError(
                f"the FAISS index {joined} gives its vector {start + wrong[0]} the id {ids[wrong[0]]}, expected the "
                "row number; give an index without ids of its own, in the order of the corpus"
            )


def _copy(flat: FaissFile, file: BinaryIO, progress: Progress) -> None:
    """Adds to the file what it lacks of the vectors."""
    header, joined = _array_header(flat), Joined(flat.files)
    done = max(0, file.tell() - len(header)) // (2 * flat.dimensions)
    file.truncate(len(header) + 2 * done * flat.dimensions if done else 0)
    if not done:
        file.write(header)
    step = max(1, BLOCK // (4 * flat.dimensions))
    for start in range(done, flat.count, step):
        progress("importing vectors", start, flat.count)
        rows = min(step, flat.count - start)
        numbers = joined.read(flat.start + 4 * start * flat.dimensions, 4 * rows * flat.dimensions)
        file.write(_halved(flat, np.frombuffer(numbers, "<f4").reshape(rows, flat.dimensions), start).tobytes())
        file.flush()
    progress("importing vectors", flat.count, flat.count)


def _halved(flat: FaissFile, vectors: NDArray[np.float32], start: int) -> NDArray[np.float16]:
    """The vectors in half precision; `start` is the row of the first, for messages."""
    with np.errstate(over="ignore"):
        halved = vectors.astype("<f2")
    infinite = np.flatnonzero(~np.isfinite(halved).all(axis=1))
    if infinite.size:
        raise InputError(
            f"vector {start + infinite[0]} of {flat.files[0]} holds a number that is not finite in 16 bits; "
            "fetch or build the index again"
        )
    if flat.metric == "l2":
        _require_unit_length(flat, vectors, start)
    return halved


def _require_unit_length(flat: FaissFile, vectors: NDArray[np.float32], start: int) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    others = np.flatnonzero(np.abs(lengths - 1) > UNIT)
    if others.size:
        raise InputError(
            f"vector {start + others[0]} of {flat.files[0]}, an index by L2 distance, has the length "
            f"{lengths[others[0]]:.4g}, expected 1; give an index by inner product, or of unit vectors"
        )


def _array_header(flat: FaissFile) -> bytes:
    header = BytesIO()
    described = {"descr": "<f2", "fortran_order": False, "shape": (flat.count, flat.dimensions)}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _reader(joined: Joined) -> Callable[[int], bytes]:
    """A function that gives the next bytes, fewer where they end."""
    position = 0

    def following(size: int) -> bytes:
        nonlocal position
        part = joined.read(position, min(size, joined.size - position))
        position += len(part)
        return part

    return following
