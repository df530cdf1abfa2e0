"""BM25, Lucene's variant: arrays built by bm25s; scores summed and selected here, the same for every batch."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.corpus.arrays import open_array
from sleuth.corpus.passages import PassageStore
from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.selection import best
from sleuth.retrieval.terms import stemmed, words

# The file names of bm25s, which can open the folder too.
SCORES = "data.csc.index.npy"
ROWS = "indices.csc.index.npy"
STARTS = "indptr.csc.index.npy"
VOCABULARY = "vocab.index.json"


def build(texts: Iterable[str], out: Path, k1: float, b: float) -> dict[str, int]:
    """Writes the arrays of the texts to a folder; returns how many terms and postings they hold."""
    # It brings tqdm and, where installed, numba along: a third of a second that a search does not need.
    import bm25s

    numbered, vocabulary = _numbered(texts)
    if not vocabulary:
        raise InputError("the corpus holds no word to index; expected text in the contents of its passages")
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    index.index((numbered, vocabulary), create_empty_token=False, show_progress=False)
    index.save(out, show_progress=False)
    return {"terms": len(vocabulary), "postings": len(index.scores["data"])}


class BM25:
    """A retriever over the arrays in a folder; `ranks` orders the rows of `store` by passage id."""

    def __init__(self, folder: Path, ranks: NDArray[np.uint32], store: PassageStore) -> None:
        self._vocabulary = _read_vocabulary(folder / VOCABULARY)
        self._starts = open_array(folder / STARTS, len(self._vocabulary) + 1)
        postings = int(self._starts[-1])
        self._scores = open_array(folder / SCORES, postings)
        self._rows = open_array(folder / ROWS, postings)
        self._ranks = ranks
        self._store = store

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """The passages that hold a term of the query; see Retriever."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        return await asyncio.to_thread(lambda: [self._answer(query, k) for query in queries])

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Rows and scores of the `k` best passages that hold a term of the query, in the order of `search`."""
        terms = self._terms(query)
        if not terms:
            return []
        scores = self._summed(terms)
        return [(int(row), float(scores[row])) for row in best(scores, self._ranks, k)]

    def _answer(self, query: str, k: int) -> list[Hit] | SearchUnavailable:
        try:
            return [Hit(self._store[row], score) for row, score in self.rank(query, k)]
        except InputError as error:
            return SearchUnavailable(query, str(error))

    def _terms(self, query: str) -> list[tuple[int, int]]:
        """Numbers of the query's terms that the corpus holds, with how often the query has them."""
        known = (self._vocabulary.get(term) for term in stemmed(words(query)))
        return sorted(Counter(number for number in known if number is not None).items())

    def _summed(self, terms: list[tuple[int, int]]) -> NDArray[np.float64]:
        """The score of every row; in float64 the sum of so few float32 is exact, so that what is equal ties."""
        spans = [slice(self._starts[number], self._starts[number + 1]) for number, _ in terms]
        rows = np.concatenate([self._rows[span] for span in spans])
        weights = [np.float64(times) for _, times in terms]
        scores = np.concatenate([self._scores[span] * weight for span, weight in zip(spans, weights, strict=True)])
        return np.bincount(rows, scores, minlength=len(self._ranks)).astype(np.float64, copy=False)


def _numbered(texts: Iterable[str]) -> tuple[list[list[int]], dict[str, int]]:
    """The texts as numbers of terms, and the numbers: in order of first appearance, so that a build can be repeated."""
    vocabulary: dict[str, int] = {}
    numbers: dict[str, int] = {}
    rows = []
    for text in texts:
        found = words(text)
        new = [word for word in found if word not in numbers]
        for word, term in zip(new, stemmed(new), strict=True):
            numbers[word] = vocabulary.setdefault(term, len(vocabulary))
        rows.append([numbers[word] for word in found])
    return rows, vocabulary


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        vocabulary = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"the vocabulary {path} is missing or damaged ({error}); build the index again") from error
    if not isinstance(vocabulary, dict):
        raise InputError(f"the vocabulary {path} is no JSON object; build the index again")
    return vocabulary
