"""Blocks of a corpus, indexed one at a time: by this process and by others beside it; what is finished stays."""

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.corpus.passages import EXPECTED, parse_row
from sleuth.corpus.progress import Progress
from sleuth.errors import InputError, UserError
from sleuth.retrieval.bm25.analyzer import Terms
from sleuth.retrieval.bm25.postings import Numbering, Postings, invert

STAGE = "indexing words"
# Small enough to be shared out evenly and held in memory, large enough to be few: a share of the corpus in between.
SMALLEST, LARGEST, SHARES = 1 << 21, 1 << 25, 32
# Another process takes a quarter of a second to start, in which this one does a block or two.
BLOCKS_A_WORKER = 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a corpus; block `n` holds the rows from `borders[n]` to `borders[n + 1]`."""

    corpus: Path
    offsets: NDArray[np.uint64]
    borders: list[int]
    folder: Path
    stemmer: str
    numbering: Numbering

    @classmethod
    def of(cls, corpus: Path, offsets: Path, folder: Path, stemmer: str) -> "Blocks":
        """The blocks as the corpus alone decides them, whoever does the work."""
        starts = open_array(offsets)
        size = int(starts[-1])
        step = min(max(size // SHARES, SMALLEST), LARGEST)
        firsts = np.searchsorted(starts[:-1], np.arange(0, size, step, dtype=np.uint64))
        borders = [*np.unique(firsts).tolist(), len(starts) - 1]
        return cls(corpus, starts, borders, folder, stemmer, Numbering(Terms(stemmer)))

    def __len__(self) -> int:
        return len(self.borders) - 1

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npy"

    def read(self, number: int) -> Postings:
        """A finished block."""
        return Postings.read(self.path(number))

    def write(self, number: int) -> None:
        """Indexes one block."""
        invert(self._texts(number), self.numbering).write(self.path(number))

    def finished(self, number: int) -> bool:
        """True for a block that an earlier build left whole."""
        try:
            return bool(Postings.read(self.path(number), verify=True).lengths.size)
        except InputError:
            return False

    def _texts(self, number: int) -> Iterator[str]:
        first, last = self.borders[number], self.borders[number + 1]
        ends = self.offsets[first : last + 1].tolist()
        with self.corpus.open("rb") as file:
            file.seek(ends[0])
            lines = file.read(ends[-1] - ends[0])
        for row in range(last - first):
            try:
                yield parse_row(lines[ends[row] - ends[0] : ends[row + 1] - ends[0]])["contents"]
            except ValueError as error:
                place = f"{self.corpus}, passage {first + row + 1}"
                raise InputError(f"{place} is unreadable ({error}); expected {EXPECTED}") from error


def write_all(blocks: Blocks, offsets: Path, workers: int, progress: Progress) -> None:
    """Indexes the blocks that are not finished, in `workers` processes of which this is one, 0 for all cores."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    left = [number for number in range(len(blocks)) if not blocks.finished(number)]
    for number in left:
        waiting.put(number)
    more = min(workers or len(os.sched_getaffinity(0)), len(left) // BLOCKS_A_WORKER) - 1
    with _beside(blocks, offsets, more, waiting):
        _work(blocks, waiting, progress)
    # A worker that ended early has put its block back: what is wrong with it is said here.
    _work(blocks, waiting, progress)
    progress(STAGE, blocks.borders[-1], blocks.borders[-1])


def _work(blocks: Blocks, waiting: queue.SimpleQueue[int], progress: Progress) -> None:
    for number in _taken(waiting):
        blocks.write(number)
        progress(STAGE, blocks.borders[number + 1], blocks.borders[-1])


def _taken(waiting: queue.SimpleQueue[int]) -> Iterator[int]:
    while True:
        try:
            yield waiting.get_nowait()
        except queue.Empty:
            return


@contextmanager
def _beside(blocks: Blocks, offsets: Path, count: int, waiting: queue.SimpleQueue[int]) -> Iterator[None]:
    """Runs workers beside the body; one is a fresh interpreter, for a fork of a process with threads may hang."""
    if count < 1:
        yield
        return
    arguments = [str(blocks.corpus), str(offsets), str(blocks.folder), blocks.stemmer]
    with ThreadPoolExecutor(count) as pool:
        ends = [pool.submit(_feed, arguments, waiting) for _ in range(count)]
        try:
            yield
        finally:
            for _ in _taken(waiting) if sys.exception() else ():
                continue
    for end in ends:
        end.result()


def _feed(arguments: list[str], waiting: queue.SimpleQueue[int]) -> None:
    """Hands blocks to a worker until there are none; the worker ends with its input, so none outlives this process."""
    command = [sys.executable, "-m", __name__, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    # In a group of its own Ctrl-C does not reach it: it would print a traceback while it starts, and lose its block.
    with subprocess.Popen(  # noqa: S603
        command, bufsize=0, stdin=pipe, stdout=pipe, env=environment, process_group=0
    ) as worker:
        for number in _taken(waiting):
            if not _wrote(worker, number):
                waiting.put(number)
                return


def _wrote(worker: subprocess.Popen[bytes], number: int) -> bool:
    """Has a worker index a block; False when it ended instead."""
    line = b"%d\n" % number
    try:
        return worker.stdin is not None and bool(worker.stdin.write(line)) and _answer(worker) == line
    except BrokenPipeError:
        return False


def _answer(worker: subprocess.Popen[bytes]) -> bytes:
    return worker.stdout.readline() if worker.stdout is not None else b""


def _serve(corpus: str, offsets: str, folder: str, stemmer: str) -> None:
    """A worker: indexes the blocks whose numbers it reads, and says when each is there."""
    blocks = Blocks.of(Path(corpus), Path(offsets), Path(folder), stemmer)
    for line in sys.stdin:
        blocks.write(int(line))
        print(int(line), flush=True)


if __name__ == "__main__":
    try:
        _serve(*sys.argv[1:])
    except (UserError, KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
