"""BM25 index build: inverts blocks of the corpus in parallel and merges them in bounded memory."""

import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import BM25Settings
from sleuth.corpus.arrays import open_array
from sleuth.corpus.passages import EXPECTED, parse_row
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError, UserError
from sleuth.retrieval.bm25.analyzer import BY_LANGUAGE, Version
from sleuth.retrieval.bm25.inverted_index import (
    GRAIN,
    MAXIMA,
    PARAMETERS,
    ROWS,
    SCORES,
    STARTS,
    STEMMERS,
    TERMS,
    Postings,
    Row,
    TermNumbers,
    invert,
    write_vocabulary,
)
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

BLOCKS = "blocks"
FINISHED = "finished.json"
STAMP = "stamp.json"
INDEXING, MERGING = "indexing words", "merging the index"
# A block is a share of the corpus within these bounds: small enough to fit in memory and balance the workers, large
# enough to keep their number low.
MIN_BLOCK, MAX_BLOCK, SHARES = 1 << 21, 1 << 25, 32
# Starting a process takes a quarter of a second; this process indexes a block or two in that time.
BLOCKS_PER_WORKER = 2
MERGED_POSTINGS = 1 << 24


def build_index(
    corpus: Path, offsets: Path, out: Path, settings: BM25Settings, *, workers: int = 0, progress: Progress = silent
) -> dict[str, int]:
    """Index a plain corpus with `workers` processes (0: all cores); return the numbers of terms and postings.

    An interrupted build resumes. The files do not depend on interruptions or the number of workers.
    """
    file = corpus.stat()
    spec = {"bytes": file.st_size, **settings.model_dump()}
    finished = out / FINISHED
    if finished.is_file() and finished.stat().st_mtime_ns >= file.st_mtime_ns:
        record = read_json(finished)
        if record.get("order") == spec:
            counts: dict[str, int] = record["counts"]
            return counts
    finished.unlink(missing_ok=True)
    # Blocks of an earlier build are reused if corpus and stemmer are the same.
    folder = out / BLOCKS
    words = {"stemmer": settings.stemmer, "analyzer": settings.analyzer}
    stamp = json.dumps({"bytes": file.st_size, "changed": file.st_mtime_ns, **words})
    if not (folder / STAMP).is_file() or (folder / STAMP).read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / STAMP).write_text(stamp)
    blocks = Blocks.of(corpus, offsets, folder, settings.stemmer, settings.analyzer)
    pending: queue.SimpleQueue[int] = queue.SimpleQueue()
    unfinished = [number for number in range(len(blocks)) if not blocks.is_finished(number)]
    for number in unfinished:
        pending.put(number)
    extra = min(workers or len(os.sched_getaffinity(0)), len(unfinished) // BLOCKS_PER_WORKER) - 1
    with _worker_processes(blocks, offsets, extra, pending):
        _invert_pending(blocks, pending, progress)
    # A worker that failed has returned its block to the queue; inverting it here raises its error.
    _invert_pending(blocks, pending, progress)
    progress(INDEXING, blocks.borders[-1], blocks.borders[-1])
    counts = _merge(blocks, out, settings, progress)
    if not counts["terms"]:
        raise InputError(f"the corpus {corpus} has no words to index; expected text in the contents of its passages")
    with atomic_write(finished) as path:
        path.write_text(json.dumps({"order": spec, "counts": counts}, indent=2) + "\n")
    shutil.rmtree(folder)
    return counts


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a corpus; block `n` has the rows from `borders[n]` to `borders[n + 1]`."""

    corpus: Path
    offsets: NDArray[np.uint64]
    borders: list[int]
    folder: Path
    analysis: tuple[str, Version]  # stemmer and version of the analyzer
    term_numbers: TermNumbers

    @classmethod
    def of(cls, corpus: Path, offsets: Path, folder: Path, stemmer: str, version: Version = 1) -> "Blocks":
        """Divide a corpus into blocks that depend on the corpus alone."""
        starts = open_array(offsets)
        size = int(starts[-1])
        step = min(max(size // SHARES, MIN_BLOCK), MAX_BLOCK)
        firsts = np.searchsorted(starts[:-1], np.arange(0, size, step, dtype=np.uint64))
        borders = [*np.unique(firsts).tolist(), len(starts) - 1]
        return cls(corpus, starts, borders, folder, (stemmer, version), TermNumbers(stemmer, version))

    def __len__(self) -> int:
        return len(self.borders) - 1

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npy"

    def read(self, number: int) -> Postings:
        return Postings.read(self.path(number))

    def write(self, number: int) -> None:
        invert(self._rows(number), self.term_numbers).write(self.path(number))

    def is_finished(self, number: int) -> bool:
        """Whether an earlier build left an intact file for this block."""
        try:
            return bool(Postings.read(self.path(number), verify=True).lengths.size)
        except InputError:
            return False

    def _rows(self, number: int) -> Iterator[Row]:
        first, last = self.borders[number], self.borders[number + 1]
        ends = self.offsets[first : last + 1].tolist()
        with self.corpus.open("rb") as file:
            file.seek(ends[0])
            lines = file.read(ends[-1] - ends[0])
        for row in range(last - first):
            try:
                passage = parse_row(lines[ends[row] - ends[0] : ends[row + 1] - ends[0]])
                yield passage["contents"], str(passage.get("language") or "")
            except ValueError as error:
                place = f"{self.corpus}, passage {first + row + 1}"
                raise InputError(f"{place} is unreadable ({error}); expected {EXPECTED}") from error


def _invert_pending(blocks: Blocks, pending: queue.SimpleQueue[int], progress: Progress) -> None:
    for number in _take(pending):
        blocks.write(number)
        progress(INDEXING, blocks.borders[number + 1], blocks.borders[-1])


def _take(pending: queue.SimpleQueue[int]) -> Iterator[int]:
    while True:
        try:
            yield pending.get_nowait()
        except queue.Empty:
            return


@contextmanager
def _worker_processes(blocks: Blocks, offsets: Path, count: int, pending: queue.SimpleQueue[int]) -> Iterator[None]:
    """Run workers inside the context, as new interpreters because forking a process with threads may deadlock."""
    if count < 1:
        yield
        return
    arguments = [str(blocks.corpus), str(offsets), str(blocks.folder), *map(str, blocks.analysis)]
    with ThreadPoolExecutor(count) as pool:
        feeders = [pool.submit(_feed, arguments, pending) for _ in range(count)]
        try:
            yield
        finally:
            for _ in _take(pending) if sys.exception() else ():
                continue
    for feeder in feeders:
        feeder.result()


def _feed(arguments: list[str], pending: queue.SimpleQueue[int]) -> None:
    """Send blocks to a worker until none are left; the worker exits when its stdin closes."""
    command, pipe = [sys.executable, "-m", __name__, *arguments], subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # A separate process group keeps Ctrl-C from the worker, which would print a traceback and lose its block.
    with subprocess.Popen(  # noqa: S603
        command, bufsize=0, stdin=pipe, stdout=pipe, env=environment, process_group=0
    ) as worker:
        stdin, stdout = worker.stdin, worker.stdout
        for number in _take(pending):
            line = b"%d\n" % number
            try:
                done = stdin and stdin.write(line) and stdout and stdout.readline() == line
            except BrokenPipeError:
                done = False
            if not done:
                pending.put(number)
                return


def _merge(blocks: Blocks, out: Path, settings: BM25Settings, progress: Progress) -> dict[str, int]:
    """Write the arrays of all blocks to a folder; return the numbers of terms and postings."""
    merged = _Merge.of(blocks, settings)
    starts = np.concatenate([[0], np.cumsum(merged.document_counts)])
    postings = int(starts[-1])
    if postings:
        merged.write_scores(blocks, starts, out, progress)
    np.save(out / STARTS, starts)
    write_vocabulary(list(merged.terms), out)
    if settings.stemmer == BY_LANGUAGE:
        (out / STEMMERS).write_text(json.dumps(merged.stemmers), encoding="utf-8")
    (out / TERMS).write_text(json.dumps(merged.terms, ensure_ascii=False), encoding="utf-8")
    parameters = {  # as bm25s names them
        "k1": settings.k1,
        "b": settings.b,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": len(merged.norms),
        "backend": "numpy",
    }
    (out / PARAMETERS).write_text(json.dumps(parameters, indent=4), encoding="utf-8")
    return {"terms": len(merged.terms), "postings": postings}


@dataclass(frozen=True, slots=True)
class _Merge:
    terms: dict[str, int]  # in order of first occurrence: the same corpus gives the same numbers
    numbers: list[NDArray[np.int32]]  # term numbers of each block
    document_counts: NDArray[np.int64]  # rows per term
    norms: NDArray[np.float64]  # k1 (1 - b + b length / mean length) per row
    stemmers: list[str]  # that the rows were analyzed with

    @classmethod
    def of(cls, blocks: Blocks, settings: BM25Settings) -> "_Merge":
        terms: dict[str, int] = {}
        numbers, counts, block_lengths = [], [], []
        stemmers: set[str] = set()
        for postings in map(blocks.read, range(len(blocks))):
            new = [term for term in postings.terms if term not in terms]
            terms.update(zip(new, range(len(terms), len(terms) + len(new)), strict=True))
            numbers.append(np.fromiter(map(terms.__getitem__, postings.terms), np.int32, len(postings.terms)))
            counts.append(postings.counts)
            block_lengths.append(postings.lengths)
            stemmers.update(postings.stemmers)
        document_counts = np.zeros(len(terms), np.int64)
        for own, count in zip(numbers, counts, strict=True):
            document_counts[own] += count
        lengths = np.concatenate([*block_lengths, np.empty(0, np.uint32)])
        mean = lengths.sum() / max(len(lengths), 1) or 1.0
        norms = np.asarray(settings.k1 * (1 - settings.b + settings.b * lengths / mean))
        return cls(terms, numbers, document_counts, norms, sorted(stemmers))

    def write_scores(self, blocks: Blocks, starts: NDArray[np.int64], out: Path, progress: Progress) -> None:
        """Write rows, scores and maxima, one range of terms at a time; `blocks` must be in row order."""
        total = int(starts[-1])
        idf = np.log(1 + (len(self.norms) - self.document_counts + 0.5) / (self.document_counts + 0.5))
        maxima = np.empty(len(self.document_counts), np.float32)
        last = 0
        while last < len(starts) - 1:
            first = last  # a range of terms whose postings fit in memory, at least one term
            last = max(int(np.searchsorted(starts, starts[first] + MERGED_POSTINGS, side="right")) - 1, first + 1)
            begin, end = int(starts[first]), int(starts[last])
            rows, scores = np.empty(end - begin, np.int32), np.empty(end - begin, np.float32)
            next_free = starts[first:last] - begin
            for number, own in enumerate(self.numbers):
                postings = blocks.read(number)
                inside = np.flatnonzero((own >= first) & (own < last))
                targets, held, frequencies = _place(postings, inside, next_free, own[inside] - first)
                held += blocks.borders[number]
                rows[targets] = held
                weights = np.repeat(idf[own[inside]], postings.counts[inside])
                # Lucene's BM25, rounded to GRAIN and never zero.
                exact = weights * frequencies / (frequencies + self.norms[held])
                scores[targets] = np.maximum(np.rint(exact / GRAIN), 1) * GRAIN
            maxima[first:last] = np.maximum.reduceat(scores, starts[first:last] - begin)
            _append(out / ROWS, rows, begin, total)
            _append(out / SCORES, scores, begin, total)
            progress(MERGING, end, total)
        np.save(out / MAXIMA, maxima)


def _place(
    postings: Postings, inside: NDArray[np.intp], next_free: NDArray[np.int64], numbers: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return target positions, rows and frequencies for the selected terms of a block; advances `next_free`."""
    counts = postings.counts.astype(np.int64)
    begins, sizes = (np.cumsum(counts) - counts)[inside], counts[inside]
    ahead = np.cumsum(sizes) - sizes
    steps = np.arange(int(sizes.sum()))
    targets = np.repeat(next_free[numbers] - ahead, sizes) + steps
    source = np.repeat(begins - ahead, sizes) + steps
    next_free[numbers] += sizes
    return targets, postings.rows[source].astype(np.int64), postings.frequencies[source].astype(np.float64)


def _append(path: Path, values: NDArray[Any], start: int, total: int) -> None:
    """Append a part of an array of `total` values; the first part creates the file."""
    with path.open("ab" if start else "wb") as file:
        if start == 0:
            descr = np.lib.format.dtype_to_descr(values.dtype)
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (total,)})
        values.tofile(file)


if __name__ == "__main__":  # worker: inverts each block whose number it reads from stdin, then prints the number
    try:
        *paths, stemmer_name, version_number = sys.argv[1:]
        corpus_path, offsets_path, folder_path = map(Path, paths)
        own = Blocks.of(corpus_path, offsets_path, folder_path, stemmer_name, cast(Version, int(version_number)))
        for line in sys.stdin:
            own.write(int(line))
            print(int(line), flush=True)
    except (UserError, KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
