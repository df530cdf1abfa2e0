"""BM25 beside bm25s: the same corpus indexed and the same queries answered by both, in turn."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import Stemmer

from sleuth.bench.table import Table
from sleuth.config.retrieval import BM25Settings
from sleuth.corpus.passages import OFFSETS, stream, survey
from sleuth.errors import MissingExtra
from sleuth.retrieval.bm25.build import build_index
from sleuth.retrieval.bm25.search import BM25

REPEATS = 3
BATCH = 512
# As many as take bm25s without numba about a second.
ALONE = 256

Answer = Callable[[Sequence[str], int], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One task: seconds by name, the best of some runs; ours comes first, and `scale` / seconds is what is shown."""

    task: str
    seconds: dict[str, float]
    scale: float | None = None

    def shown(self, name: str) -> float | str:
        if name not in self.seconds:
            return "-"
        return self.seconds[name] if self.scale is None else self.scale / self.seconds[name]

    def ratio(self, name: str) -> float | str:
        """How many times as fast ours is."""
        return self.seconds[name] / self.seconds[OURS] if name in self.seconds else "-"


OURS, PLAIN, COMPILED = "ours", "bm25s", "bm25s with numba"


def table(corpus: Path, queries: list[str], k: int) -> Table:
    """The comparison in words."""
    timings = compare(corpus, queries, k)
    peers = [name for name in (PLAIN, COMPILED) if any(name in timing.seconds for timing in timings)]
    return Table(
        f"BM25, {corpus.name}, {len(queries):,} queries, best {k}",
        ("", OURS, *peers, *(f"times as fast as {peer}" for peer in peers)),
        [
            (timing.task, *(timing.shown(name) for name in (OURS, *peers)), *(timing.ratio(peer) for peer in peers))
            for timing in timings
        ],
    )


def compare(corpus: Path, queries: list[str], k: int, *, compiled: bool = True) -> list[Timing]:
    """Times a plain corpus and queries: an index from text to arrays, queries one at a time and many at once.

    bm25s has its texts in memory and need not save its index; ours reads them from disk and writes the index there. The
    survey of a corpus, which checks its rows and ids before any index is built, is not counted.
    Where numba is installed it is `compiled` too, which takes ten seconds.
    """
    with TemporaryDirectory() as scratch:
        passages, offsets = survey(corpus, Path(scratch)).passages, Path(scratch, OFFSETS)
        texts = [passage.contents for passage in stream(corpus)]
        settings, folder = BM25Settings(), Path(scratch, "index")
        peer = _Peer(texts, settings)

        def anew() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            build_index(corpus, offsets, folder, settings)

        index = Timing(f"index {passages:,} passages, s", _best({OURS: anew, PLAIN: peer.index}))
        ours = BM25(folder, settings, np.arange(passages, dtype=np.uint32))
        answers: dict[str, Answer] = {OURS: ours.rank} | peer.answers(compiled=compiled)
        return [index, _alone(answers, queries[:ALONE], k), _together(answers, queries, k)]


def _alone(answers: dict[str, Answer], queries: list[str], k: int) -> Timing:
    def one_by_one(answer: Answer) -> None:
        for query in queries:
            answer([query], k)

    tasks = {name: partial(one_by_one, answer) for name, answer in answers.items()}
    return Timing("queries/s, one at a time", _best(tasks), len(queries))


def _together(answers: dict[str, Answer], queries: list[str], k: int) -> Timing:
    many = queries[:BATCH]
    tasks = {name: partial(answer, many, k) for name, answer in answers.items()}
    return Timing(f"queries/s, {len(many)} at once", _best(tasks), len(many))


def _best(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest of some runs of each task, taken in turn, so that a busy moment is shared."""
    seconds = dict.fromkeys(tasks, float("inf"))
    for _ in range(REPEATS):
        for name, task in tasks.items():
            start = perf_counter()
            task()
            seconds[name] = min(seconds[name], perf_counter() - start)
    return seconds


class _Peer:
    """bm25s as its manual has it: its own tokenizer, Snowball's stemmer, as many threads as there are cores."""

    def __init__(self, texts: list[str], settings: BM25Settings) -> None:
        self._bm25s = _imported()
        self._texts = texts
        self._settings = settings
        self._stemmer = Stemmer.Stemmer(settings.stemmer)
        self._built: Any = None

    def index(self) -> None:
        """Tokenises the texts and indexes them."""
        self._built = self._bm25s.BM25(k1=self._settings.k1, b=self._settings.b, method="lucene", backend="numpy")
        self._built.index(self._tokens(self._texts), show_progress=False)

    def answers(self, *, compiled: bool) -> dict[str, Answer]:
        """Search in what was indexed, without numba and, where it is installed, with it."""
        if not compiled or find_spec("numba") is None:
            return {PLAIN: partial(self._answer, "numpy")}
        self._built.activate_numba_scorer()
        return {PLAIN: partial(self._answer, "numpy"), COMPILED: partial(self._answer, "numba")}

    def _answer(self, backend: str, queries: Sequence[str], k: int) -> object:
        # One query is slower on many threads than on one.
        threads = len(os.sched_getaffinity(0)) if len(queries) > 1 else 0
        self._built.backend = backend
        return self._built.retrieve(self._tokens(list(queries)), k=k, n_threads=threads, show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, show_progress=False)


def _imported() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtra("bm25s", "bench") from None
    return bm25s
