"""BM25, Lucene's variant: an inverted index of our own, which bm25s can open, and exact search in it."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import BM25Settings
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import InputError
from sleuth.retrieval.bm25.analyzer import Terms
from sleuth.retrieval.bm25.build import Blocks, write_all
from sleuth.retrieval.bm25.inverted_index import Inverted, merge
from sleuth.retrieval.bm25.maxscore import MaxScore, Weighted
from sleuth.retrieval.bm25.vocabulary import Vocabulary
from sleuth.retrieval.retriever import Ranking
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json

BLOCKS = "blocks"
FINISHED = "finished.json"
STAMP = "stamp.json"
REMEMBERED = 1 << 17


def build(
    corpus: Path,
    offsets: Path,
    out: Path,
    settings: BM25Settings,
    *,
    workers: int = 0,
    progress: Progress = silent,
) -> dict[str, int]:
    """Indexes a plain corpus into a folder with `workers` processes, 0 for all cores; returns terms and postings.

    Killed and called again it goes on where it was. The arrays are the same, byte for byte, in any case.
    """
    order = {"bytes": corpus.stat().st_size, **settings.model_dump()}
    if (counts := _finished(out / FINISHED, order, corpus)) is not None:
        return counts
    (out / FINISHED).unlink(missing_ok=True)
    folder = _resumed(out / BLOCKS, corpus, settings)
    blocks = Blocks.of(corpus, offsets, folder, settings.stemmer)
    write_all(blocks, offsets, workers, progress)
    counts = merge(blocks, out, settings, progress)
    if not counts["terms"]:
        raise InputError(f"the corpus {corpus} holds no word to index; expected text in the contents of its passages")
    with atomic_write(out / FINISHED) as path:
        path.write_text(json.dumps({"order": order, "counts": counts}, indent=2) + "\n")
    shutil.rmtree(folder)
    return counts


class BM25:
    """A ranker over the arrays in a folder; `ranks` orders the rows by passage id."""

    def __init__(self, folder: Path, settings: BM25Settings, ranks: NDArray[np.uint32]) -> None:
        index = Inverted.open(folder, len(ranks))
        self._terms = Terms(settings.stemmer)
        self._known = _Known(self._terms, Vocabulary(folder, len(index.maxima)), index)
        self._search = MaxScore(index, len(ranks))
        self._ranks = ranks

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """The `k` best rows that hold a term of each query; see Ranker."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        return [self._ranked(query, k) for query in queries]

    def _ranked(self, query: str, k: int) -> Ranking:
        found = Counter(map(self._known.__getitem__, self._terms.runs(query)))
        terms = [term.said(times) for term, times in found.items() if term is not None]
        if not terms:
            return []
        rows, scores = self._search.best(terms, k)
        order = np.lexsort((self._ranks[rows], -scores))[:k]
        return list(zip(rows[order].tolist(), scores[order].tolist(), strict=True))


class _Known(dict[str, Weighted | None]):
    """Runs of letters to the terms of the index; None for what it does not hold."""

    def __init__(self, terms: Terms, vocabulary: Vocabulary, index: Inverted) -> None:
        super().__init__()
        self._terms, self._vocabulary, self._index = terms, vocabulary, index

    def __missing__(self, run: str) -> Weighted | None:
        term = self._terms.term(run)
        number = None if term is None else self._vocabulary.number(term)
        if len(self) >= REMEMBERED:
            self.clear()
        self[run] = None if number is None else self._weighted(number)
        return self[run]

    def _weighted(self, number: int) -> Weighted:
        start, end = self._index.starts[number : number + 2].tolist()
        return Weighted(float(self._index.maxima[number]), start, end, 1)


def _finished(path: Path, order: dict[str, str | float], corpus: Path) -> dict[str, int] | None:
    """What an earlier build of the same order counted, unless the corpus was written to since."""
    if not path.is_file() or path.stat().st_mtime_ns < corpus.stat().st_mtime_ns:
        return None
    found = read_json(path)
    return found["counts"] if found.get("order") == order else None


def _resumed(folder: Path, corpus: Path, settings: BM25Settings) -> Path:
    """The folder for blocks, with those that an earlier build of the same corpus and stemmer left there."""
    file = corpus.stat()
    stamp = json.dumps({"bytes": file.st_size, "changed": file.st_mtime_ns, "stemmer": settings.stemmer})
    known = folder / STAMP
    if not known.is_file() or known.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        known.write_text(stamp)
    return folder
