"""Updates of an index of documents: only new and changed documents are read, cut into passages and encoded."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sleuth.config.retrieval import IndexPlan
from sleuth.corpus.arrays import open_array
from sleuth.corpus.chunks import WORDS
from sleuth.corpus.document_rows import Reuse, read_nothing
from sleuth.corpus.documents import READER
from sleuth.corpus.passages import OFFSETS
from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.survey import DocumentRecord, DocumentSurvey, read_survey
from sleuth.errors import InputError
from sleuth.retrieval import manifest, staging
from sleuth.retrieval.dense import ann, vectors
from sleuth.retrieval.index import build_parts, load_encoder, require_same_weights
from sleuth.retrieval.manifest import Manifest


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """The number of documents that an update added, changed, removed and left as they were."""

    added: int
    changed: int
    removed: int
    unchanged: int

    @classmethod
    def between(cls, old: DocumentSurvey, new: DocumentSurvey) -> "IndexUpdate":
        before = {document.path: document.sha256 for document in old.documents}
        after = {document.path: document.sha256 for document in new.documents}
        kept = before.keys() & after.keys()
        unchanged = sum(before[path] == after[path] for path in kept)
        return cls(len(after) - len(kept), len(kept) - unchanged, len(before) - len(kept), unchanged)


class _NothingChangedError(InputError):
    """Ends an update before anything is built."""


def update(
    folder: Path, source: Path, *, progress: Progress = silent, workers: int = 0, device: str = "auto"
) -> IndexUpdate:
    """Make an index equal to a new build from `source`; it stays in place and searchable until the update is complete.

    Documents are compared by path, size and hash. Words are indexed again from the passages, because their scores
    depend on all of them; this takes seconds. Raises InputError if the index was not built from documents.
    """
    described = manifest.read(folder)
    old = read_survey(folder)
    if old is None or described.documents is None or described.faiss:
        raise InputError(f"{folder} was not built from documents by this version; build it again: sleuth index build")
    manifest.verify_files(folder, described, full=False)
    corpus = manifest.verified_corpus(folder, described.corpus, full=False)
    plan = IndexPlan(**{name: getattr(described, name) for name in IndexPlan.model_fields})
    encoder = load_encoder(plan, device)
    if encoder is not None:
        require_same_weights(encoder, described, folder)
    # Passages cut by another version may differ from those of a new build.
    same = (described.documents.reader, described.documents.words) == (READER, WORDS)
    reuse: Reuse = _StoredRows(old, corpus, folder).of if same else read_nothing
    spec = {"source": staging.source_fingerprint(source), "base": manifest.fingerprint(folder)}
    try:
        with staging.staged_folder(folder, spec, replace=True) as new:
            prepared = staging.prepare_corpus(source, new, progress, reuse)
            if prepared.documents is None:
                raise InputError(f"{source} holds no documents; give the folder that {folder} was built from")
            if prepared.documents == old and same:
                raise _NothingChangedError(f"no document in {source} changed since {folder} was built")
            known = _known_vectors(folder, described, old, prepared.documents) if encoder and same else None
            build_parts(plan, prepared, new, folder, encoder, progress=progress, workers=workers, known=known)
    except _NothingChangedError:
        return IndexUpdate.between(old, old)
    return IndexUpdate.between(old, prepared.documents)


class _StoredRows:
    """The rows of the documents of an index, which are stored in the order of the survey."""

    def __init__(self, survey: DocumentSurvey, corpus: Path, folder: Path) -> None:
        self._records = {record.path: record for record in survey.documents}
        self._starts = _first_rows(survey)
        self._corpus, self._offsets = corpus, open_array(folder / OFFSETS)

    def of(self, path: str, size: int, sha256: str) -> tuple[DocumentRecord, list[bytes]] | None:
        record = self._records.get(path)
        if record is None or (record.bytes, record.sha256) != (size, sha256):
            return None
        first = self._starts[path]
        begin, end = (int(self._offsets[row]) for row in (first, first + record.passages))
        with self._corpus.open("rb") as file:
            file.seek(begin)
            return record, file.read(end - begin).splitlines(keepends=True)


def _first_rows(survey: DocumentSurvey) -> dict[str, int]:
    counts = [document.passages for document in survey.documents]
    starts = np.cumsum([0, *counts])[:-1].tolist()
    return {document.path: start for document, start in zip(survey.documents, starts, strict=True)}


def _known_vectors(folder: Path, described: Manifest, old: DocumentSurvey, new: DocumentSurvey) -> vectors.KnownVectors:
    """Return the vectors of an index, and which of them are those of the passages of a new survey."""
    graph = described.ann is not None and described.ann.method == "hnsw"
    if graph:
        stored = ann.stored_vectors(folder / ann.FILE)
    else:
        stored = vectors.open_vectors(folder, described.passages, described.dimensions or 0)
    starts = _first_rows(old)
    unchanged = set(old.documents)
    rows: list[NDArray[np.int64]] = []
    for document in new.documents:
        first = starts[document.path] if document in unchanged else -1
        rows.append(np.arange(document.passages) + first if first >= 0 else np.full(document.passages, -1))
    return vectors.KnownVectors(stored, np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64))
