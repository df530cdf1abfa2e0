"""The embedding matrix of a corpus: encoded in blocks, resumable, opened memory-mapped."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import EncoderSettings
from sleuth.corpus.arrays import open_array, sample_positions
from sleuth.corpus.passages import parse
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.retrieval.dense.encoder import Advance, Encoder

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


@dataclass(frozen=True, slots=True)
class CorpusBlocks:
    """A plain corpus in blocks of `size` passages, which are encoded together, and the encoder of its passages."""

    corpus: Path
    offsets: Path
    encoder: EncoderSettings
    fingerprint: str  # of the encoder's weights
    size: int

    @property
    def passages(self) -> int:
        return len(open_array(self.offsets)) - 1

    def read(self, first: int) -> list[str]:
        """Return the contents of the passages of the block that begins at row `first`."""
        spans = open_array(self.offsets)[first : first + self.size + 1]
        with self.corpus.open("rb") as file:
            file.seek(int(spans[0]))
            try:
                return [parse(file.read(size)).contents for size in np.diff(spans).tolist()]
            except (ValueError, RecursionError) as error:
                raise InputError(f"the corpus {self.corpus} changed while it was indexed ({error}); retry") from error


# Encodes the blocks at the given first rows and yields each with its first row, in any order; the last argument is
# called with the number of newly finished passages.
EncodeBlocks = Callable[[CorpusBlocks, Sequence[int], "Advance"], Iterator[tuple[int, NDArray[np.float16]]]]


def build(
    corpus: Path,
    offsets: Path,
    out: Path,
    encoder: "Encoder",
    progress: Progress = silent,
    block: int = BLOCK,
    known: KnownVectors | None = None,
    encode_blocks: EncodeBlocks | None = None,
) -> None:
    """Write the vectors of a plain corpus into the folder `out`; an interrupted build resumes.

    The passages of a block are encoded together, by `encoder` or by `encode_blocks`, so a resumed build gives the same
    bytes. Those that are `known` are copied.
    """
    passages, dimensions = shape = (len(open_array(offsets)) - 1, encoder.dimensions)
    if not (out / VECTORS).exists():
        spec = {"passages": passages, "dimensions": dimensions, "block": block, "encoder": encoder.fingerprint}
        finished = _finished_blocks(out, spec)
        ends = {first: min(first + block, passages) for first in range(0, passages, block)}
        pending = [first for first, end in ends.items() if end not in finished]
        done = passages - sum(ends[first] - first for first in pending)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("encoding", done, passages)

        with (out / UNFINISHED).open("r+b" if finished else "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
            file.flush()
            start = file.tell()
            if os.fstat(file.fileno()).st_size < start + max(finished, default=0) * dimensions * 2:
                raise InputError(f"{file.name} is shorter than its journal says; remove that folder and retry")
            encode = encode_blocks or _encode_here(encoder, known)
            blocks, missing = CorpusBlocks(corpus, offsets, encoder.settings, encoder.fingerprint, block), set(pending)
            for first, encoded in encode(blocks, pending, advance):
                if encoded.shape != (ends[first] - first, dimensions):
                    raise ValueError(f"block {first} has shape {encoded.shape}, expected {ends[first] - first} rows")
                file.seek(start + first * dimensions * 2)
                file.write(encoded.tobytes())
                _sync(file)
                _append(out / JOURNAL, "ab", ends[first])
                missing.discard(first)
            if missing:
                raise RuntimeError(f"{len(missing)} blocks were not encoded, among them {min(missing)}")
            file.truncate(start + passages * dimensions * 2)
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


def _finished_blocks(out: Path, spec: dict[str, Any]) -> set[int]:
    """Return the last rows (exclusive) of the blocks that an interrupted build with the same spec has encoded."""
    journal = out / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith(b"\n")]
    if not entries or not (out / UNFINISHED).exists():
        _append(journal, "wb", spec)
        return set()
    if entries[0] != spec:
        raise InputError(f"{out} has unfinished vectors of another encoder or corpus; remove that folder and retry")
    return set(map(int, entries[1:]))


def _append(journal: Path, mode: str, entry: Any) -> None:
    with journal.open(mode) as file:
        file.write(json.dumps(entry).encode() + b"\n")
        _sync(file)


def _encode_here(encoder: "Encoder", known: KnownVectors | None) -> EncodeBlocks:
    """Encode the blocks in this process, in order."""

    def encode(
        blocks: CorpusBlocks, firsts: Sequence[int], advance: "Advance"
    ) -> Iterator[tuple[int, NDArray[np.float16]]]:
        for first in firsts:
            contents = blocks.read(first)
            if known is None:
                yield first, encoder.encode_passages(contents, advance)
                continue
            earlier = known.rows[first : first + len(contents)]
            encoded = known.vectors[np.maximum(earlier, 0)]
            new = np.flatnonzero(earlier < 0)
            advance(len(contents) - len(new))
            if len(new):
                encoded[new] = encoder.encode_passages([contents[place] for place in new], advance)
            yield first, encoded

    return encode


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
