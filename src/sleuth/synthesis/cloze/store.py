"""The passages that questions are made of, by row: those of any source that an index could be built of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sleuth.corpus.passages import PassageStore
from sleuth.corpus.progress import Progress, silent
from sleuth.corpus.sources import plain
from sleuth.corpus.survey import survey


@contextmanager
def opened(source: Path, progress: Progress = silent) -> Iterator[PassageStore]:
    """The passages of a source; what has to be written for that is gone afterwards."""
    with TemporaryDirectory() as folder:
        corpus = plain(source, Path(folder), progress).corpus
        survey(corpus, Path(folder), progress, source)
        yield PassageStore(corpus, Path(folder))
