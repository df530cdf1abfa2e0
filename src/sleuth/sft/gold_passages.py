"""Passages by their ids, out of an index folder or a corpus file."""

from collections.abc import Callable
from pathlib import Path

from sleuth.config.retrieval import RetrievalConfig
from sleuth.corpus import passages
from sleuth.errors import ConfigError
from sleuth.records import Passage
from sleuth.retrieval.index import open_passages

Find = Callable[[str], Passage | None]


def finder(corpus: Path | None, index: str | None, wanted: set[str]) -> Find:
    """Finds the wanted passages: a corpus is read once for them, an index folder knows where its own lie."""
    if corpus is not None:
        found = {passage.id: passage for passage in passages.stream(corpus) if passage.id in wanted}
        return found.get
    if index is None or not RetrievalConfig(index=index).local:
        if wanted:
            raise ConfigError(
                f"the questions name supporting passages, which {index} cannot give by id; name their file: --corpus"
            )
        return lambda _: None
    folder = Path(index)
    return open_passages(folder).find
