"""The embedding matrix of a corpus: encoded in blocks, resumable, opened memory-mapped."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
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
BLOCK = 4096
PROBES = 16
SAMPLE = 5
ROUNDING = 1e-6
MIN_COSINE = 0.95  # a different truncation or prefix scores above, a different model, pooling or corpus far below


@dataclass(frozen=True, slots=True)
class KnownVectors:
    """Vectors of an earlier index, and for each row of the corpus its row in them, or -1."""

    vectors: NDArray[np.float16]
    rows: NDArray[np.int64]


def build(
    corpus: Path,
    offsets: Path,
    out: Path,
    encoder: "Encoder",
    progress: Progress = silent,
    block: int = BLOCK,
    known: KnownVectors | None = None,
) -> None:
    """Write the vectors of a plain corpus into the folder `out`; an interrupted build resumes.

    The passages of a block are encoded together, so a resumed build gives the same bytes. Those that are `known` are
    copied.
    """
    starts = open_array(offsets)
    shape = (len(starts) - 1, encoder.dimensions)
    if not (out / VECTORS).exists():
        spec = {"passages": shape[0], "dimensions": shape[1], "block": block, "encoder": encoder.fingerprint}
        done = _finished_rows(out, spec)
        with corpus.open("rb") as texts, (out / UNFINISHED).open("r+b" if done else "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
            file.flush()
            size = file.tell() + done * shape[1] * 2
            if os.fstat(file.fileno()).st_size < size:
                raise InputError(f"{file.name} is shorter than its journal says; remove that folder and retry")
            file.truncate(size)
            file.seek(size)
            for first in range(done, shape[0], block):
                spans = starts[first : first + block + 1]
                file.write(_encode(texts, spans, first, shape[0], encoder, progress, known).tobytes())
                _sync(file)
                _append(out / JOURNAL, "ab", first + len(spans) - 1)
        (out / UNFINISHED).rename(out / VECTORS)
    (out / JOURNAL).unlink(missing_ok=True)
    open_vectors(out, *shape)


def open_vectors(folder: Path, passages: int, dimensions: int) -> NDArray[np.float16]:
    """Memory-map the vectors of an index; raise InputError if the file is missing or damaged."""
    path = folder / VECTORS
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"the vectors {path} do not exist; build the index again") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"the vectors {path} are damaged or truncated ({error}); build the index again") from error
    if mapped.shape != (passages, dimensions) or mapped.dtype != np.float16 or not mapped.flags.c_contiguous:
        found = f"shape {mapped.shape} of {mapped.dtype}"
        raise InputError(f"{path} has {found}, expected {(passages, dimensions)} of float16; build the index again")
    if not np.isfinite(mapped[sample_positions(passages, PROBES)]).all():
        raise InputError(f"the vectors {path} contain non-finite numbers; build the index again")
    return np.asarray(mapped)


def require_same_encoder(
    encoder: "Encoder", stored: Sequence[tuple[str, NDArray[np.floating[Any]]]], name: str | Path
) -> float:
    """Raise InputError if `encoder` did not produce the (passage, vector) pairs in `stored`; errors call them `name`.

    Returns the mean cosine: above 0.999 with the same settings, about 0.99 with another prefix or truncation.
    """
    fresh = encoder.encode_passages([contents for contents, _ in stored]).astype(np.float64)
    kept = np.stack([vector for _, vector in stored]).astype(np.float64)
    lengths = np.linalg.norm(fresh, axis=1)[:, None] * np.linalg.norm(kept, axis=1)
    cosines = np.asarray((fresh @ kept.T) / np.maximum(lengths, np.finfo(np.float64).tiny))
    own = cosines.diagonal()
    mean = float(own.mean())
    remedy = "use the corpus, encoder, prefixes and pooling of the index"
    if not mean >= MIN_COSINE:
        raise InputError(
            f"the vectors of {name} were not made by the encoder {encoder.settings.model}: mean cosine {mean:.2f} over "
            f"{len(stored)} passages, expected at least {MIN_COSINE}; {remedy}"
        )
    # Some encoders place all texts close together, so a shuffled corpus would pass the check above.
    misplaced = int((own < cosines.max(axis=1) - ROUNDING).sum())
    if misplaced > len(stored) / 2:
        raise InputError(
            f"the vectors of {name} are in another order than the passages: {misplaced} of {len(stored)} passages are "
            f"closer to the vector of another; {remedy}"
        )
    return mean


def _finished_rows(out: Path, spec: dict[str, Any]) -> int:
    """Return the number of passages that an interrupted build with the same spec has encoded."""
    journal = out / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith(b"\n")]
    if not entries or not (out / UNFINISHED).exists():
        _append(journal, "wb", spec)
        return 0
    if entries[0] != spec:
        raise InputError(f"{out} has unfinished vectors of another encoder or corpus; remove that folder and retry")
    return int(entries[-1]) if len(entries) > 1 else 0


def _append(journal: Path, mode: str, entry: Any) -> None:
    with journal.open(mode) as file:
        file.write(json.dumps(entry).encode() + b"\n")
        _sync(file)


def _encode(
    texts: BinaryIO,
    spans: NDArray[np.uint64],
    first: int,
    total: int,
    encoder: "Encoder",
    progress: Progress,
    known: KnownVectors | None,
) -> NDArray[np.float16]:
    """Encode the passages at the byte ranges between `spans`; `first` is the row number of the first passage."""
    texts.seek(int(spans[0]))
    try:
        contents = [parse(texts.read(size)).contents for size in np.diff(spans).tolist()]
    except (ValueError, RecursionError) as error:
        raise InputError(f"the corpus {texts.name} changed while it was indexed ({error}); retry") from error
    done = first

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("encoding", done, total)

    if known is None:
        return encoder.encode_passages(contents, advance)
    earlier = known.rows[first : first + len(contents)]
    encoded = known.vectors[np.maximum(earlier, 0)]
    new = np.flatnonzero(earlier < 0)
    done += len(contents) - len(new)
    if len(new):
        encoded[new] = encoder.encode_passages([contents[place] for place in new], advance)
    return encoded


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
