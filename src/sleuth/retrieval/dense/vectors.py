"""The passages of a corpus as a matrix of halves: written in blocks, continued after a kill, opened mapped."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array, sample_positions
from sleuth.corpus.passages import parse
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.retrieval.dense.encoder import Encoder

VECTORS = "vectors.npy"
UNFINISHED = "vectors.part"
JOURNAL = "vectors.journal"
STAGE = "encoding"
BLOCK = 4096
PROBES = 16
SAMPLE = 5
ROUNDING = 1e-6
SAME = 0.95  # cosine: another cut or prefix stays above it, another model, pooling or corpus far below


def build(
    corpus: Path, offsets: Path, out: Path, encoder: "Encoder", progress: Progress = silent, block: int = BLOCK
) -> None:
    """Writes the vectors of a plain corpus into the folder `out`; begun again after a kill, it continues.

    The passages of a block are computed together, so a build continued gives the bytes of one undisturbed.
    """
    starts = open_array(offsets)
    shape = (len(starts) - 1, encoder.dimensions)
    if not (out / VECTORS).exists():
        order = {"passages": shape[0], "dimensions": shape[1], "block": block, "encoder": encoder.fingerprint}
        done = _begin(out, order)
        with corpus.open("rb") as texts, (out / UNFINISHED).open("r+b" if done else "wb") as file:
            _cut(file, shape, done)
            for first in range(done, shape[0], block):
                spans = starts[first : first + block + 1]
                file.write(_encoded(texts, spans, first, shape[0], encoder, progress).tobytes())
                _synced(file)
                _append(out / JOURNAL, "ab", first + len(spans) - 1)
        (out / UNFINISHED).rename(out / VECTORS)
    (out / JOURNAL).unlink(missing_ok=True)
    open_vectors(out, *shape)


def open_vectors(folder: Path, passages: int, dimensions: int) -> NDArray[np.float16]:
    """The vectors of an index, read from disk where they are touched; a file that is not whole is an InputError."""
    path = folder / VECTORS
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"the vectors {path} do not exist; build the index again") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"the vectors {path} are damaged or cut short ({error}); build the index again") from error
    if mapped.shape != (passages, dimensions) or mapped.dtype != np.float16 or not mapped.flags.c_contiguous:
        found = f"{mapped.shape} of {mapped.dtype}"
        raise InputError(
            f"{path} has shape {found}, expected {(passages, dimensions)} of float16; build the index again"
        )
    if not np.isfinite(mapped[sample_positions(passages, PROBES)]).all():
        raise InputError(f"the vectors {path} hold numbers that are not finite; build the index again")
    return np.asarray(mapped)


def check(encoder: "Encoder", stored: Sequence[tuple[str, NDArray[np.floating[Any]]]], name: str | Path) -> float:
    """Refuses an encoder that is not the one of some vectors, stored with their passages; `name` is what holds them.

    Returns the mean cosine: with the same settings above 0.999, with another prefix or cut perhaps 0.99.
    """
    cosines = _cosines(encoder, stored)
    own = cosines.diagonal()
    found = float(own.mean())
    remedy = "give the corpus, encoder, prefixes, pooling of the index"
    if not found >= SAME:
        raise InputError(
            f"the vectors of {name} are not those of the encoder {encoder.settings.model}: cosine {found:.2f} for "
            f"{len(stored)} passages, expected above {SAME}; {remedy}"
        )
    # To some encoders all texts are alike: a passage of another row would be above any bound.
    strayed = int((own < cosines.max(axis=1) - ROUNDING).sum())
    if strayed > len(stored) / 2:
        raise InputError(
            f"the vectors of {name} are in another order than the passages: {strayed} of {len(stored)} passages are "
            f"nearer to the vector of another; {remedy}"
        )
    return found


def _cosines(encoder: "Encoder", stored: Sequence[tuple[str, NDArray[np.floating[Any]]]]) -> NDArray[np.float64]:
    """A row a passage, as the encoder reads it; a column a vector, as it was stored."""
    fresh = encoder.encode_passages([contents for contents, _ in stored]).astype(np.float64)
    kept = np.stack([vector for _, vector in stored]).astype(np.float64)
    lengths = np.linalg.norm(fresh, axis=1)[:, None] * np.linalg.norm(kept, axis=1)
    return np.asarray((fresh @ kept.T) / np.maximum(lengths, np.finfo(np.float64).tiny))


def _begin(out: Path, order: dict[str, Any]) -> int:
    """How many passages an earlier build of the same order has finished; none where there was none."""
    journal = out / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    if not whole or not (out / UNFINISHED).exists():
        _append(journal, "wb", order)
        return 0
    if whole[0] != order:
        raise InputError(
            f"{out} holds vectors begun with another encoder or corpus; remove that folder and begin again"
        )
    return int(whole[-1]) if len(whole) > 1 else 0


def _append(journal: Path, mode: str, entry: Any) -> None:
    with journal.open(mode) as file:
        file.write(json.dumps(entry).encode() + b"\n")
        _synced(file)


def _encoded(
    texts: BinaryIO, spans: NDArray[np.uint64], first: int, total: int, encoder: "Encoder", progress: Progress
) -> NDArray[np.float16]:
    """The vectors of the passages between the offsets `spans`, the first of which has row number `first`."""
    texts.seek(int(spans[0]))
    sizes = np.diff(spans).tolist()
    try:
        contents = [parse(texts.read(size)).contents for size in sizes]
    except (ValueError, RecursionError) as error:
        raise InputError(f"the corpus {texts.name} changed while it was indexed ({error}); begin again") from error
    done = first

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(STAGE, done, total)

    return encoder.encode_passages(contents, advance)


def _cut(file: BinaryIO, shape: tuple[int, int], done: int) -> None:
    """Leaves the header and the first `done` vectors, and stands behind them."""
    np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
    file.flush()
    size = file.tell() + done * shape[1] * 2
    if os.fstat(file.fileno()).st_size < size:
        raise InputError(f"{file.name} is shorter than its journal says; remove that folder and begin again")
    file.truncate(size)
    file.seek(size)


def _synced(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
