"""Reading trace files: in this process where they are short, spread over others where they are long."""

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from sleuth.corpus.jsonl import text_lines
from sleuth.errors import ConfigError, InputError, TrainingStopped
from sleuth.model.tokens import Tokens
from sleuth.runs.json_files import read_json
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import FORMS, Batch, Reader, Reading
from sleuth.train.observer import RunObserver

SOON = 1000  # traces that are read before a person would look for progress
BATCH = 256  # lines that a worker is given at once
FEW = 8192  # traces that are read here before a worker has begun
WORKERS = 12  # at most: more would wait for this process, which hands out lines and gathers traces

_Start = tuple[Path, SFTConfig]  # what a reader is made of; a tokenizer sent whole would make workers begin one by one


def read(
    source: Path, files: Sequence[Path], settings: SFTConfig, observer: RunObserver, *, workers: int | None = None
) -> Reading:
    """All traces of the files for a model folder; the first bad line is an InputError, and so is nothing to train on.

    `workers` is the number of processes beside this one, absent: as many as are worth it.
    """
    total = sum(_count(path) for path in files)
    if total > SOON:
        observer.begin("reading traces", total)
    batches = (batch for path in files for batch in _batches(path))
    count = worth(total, len(os.sched_getaffinity(0))) if workers is None else workers
    start = (source, settings)
    parts = _spread(start, batches, count) if count else map(_reader(start).read, batches)
    reading = Reading()
    for part in parts:
        reading.add(part)
        observer.advance(part.lines)
    if settings.min_reward is not None and not reading.scored:
        raise ConfigError("--min-reward has no effect with traces of messages, which have no reward; remove it")
    if not reading.traces:
        raise InputError(
            f"nothing is left of {', '.join(map(str, files))}: {reading.sentence()}; give other traces, "
            "such as shorter ones with fewer documents, or let longer or worse ones in with --row-tokens (what the "
            "model reads at most), --overlong cut or --min-reward"
        )
    return reading


def _count(path: Path) -> int:
    """The lines of a file that hold something; none is an InputError."""
    count = sum(not line.isspace() for line in text_lines(path, "trace file"))
    if not count:
        raise InputError(f"{path} holds no traces; expected on each line {FORMS}")
    return count


def _vocabulary(source: Path) -> int | None:
    """How many tokens the model has, as far as it says."""
    size = read_json(source / "config.json").get("vocab_size")
    return size if isinstance(size, int) else None


def _batches(path: Path) -> Iterator[Batch]:
    numbered = ((number, line) for number, line in enumerate(text_lines(path, "trace file"), 1) if not line.isspace())
    while held := tuple(islice(numbered, BATCH)):
        yield Batch(path, held)


def worth(total: int, cores: int) -> int:
    """How many workers are worth their beginning: none for few traces, and three quarters of the cores at most."""
    count = min(cores * 3 // 4, WORKERS)
    return count if total >= FEW and count > 1 else 0


def _spread(start: _Start, batches: Iterable[Batch], workers: int) -> Iterator[Reading]:
    """What worker processes read, in the order of the batches."""
    # Spawned, since a fork of a process with threads may never go on.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, start) as pool:
        under_way: deque[Future[Reading]] = deque()
        try:
            for batch in batches:
                under_way.append(pool.submit(_part, batch))
                if len(under_way) > 3 * workers:  # never all lines at once in memory
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise TrainingStopped(
                "a process that read traces ended of itself, perhaps for want of memory; free some, and try again"
            ) from error


_READERS: list[Reader] = []  # of a worker: the one it reads with


def _begin(*start: *_Start) -> None:
    """A worker leaves Ctrl-C to the process it works for, and is one thread, for there are many of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _READERS.append(_reader(start))


def _reader(start: _Start) -> Reader:
    source, settings = start
    return Reader(Tokens.load(source), _vocabulary(source), settings)


def _part(batch: Batch) -> Reading:
    return _READERS[0].read(batch)
