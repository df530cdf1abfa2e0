"""A generated encyclopedia with an index of it on the disk, for as long as something is measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sleuth.config.retrieval import IndexPlan, RetrievalConfig
from sleuth.corpus import questions
from sleuth.corpus.questions import CORPUS, TRAIN
from sleuth.records import Question
from sleuth.retrieval import index
from sleuth.retrieval.backends import open_retriever
from sleuth.retrieval.retriever import Retriever
from sleuth.synthesis.world.world import World, write_world


@dataclass(frozen=True, slots=True)
class Encyclopedia:
    """Questions, and what is searched for their answers."""

    questions: list[Question]
    retriever: Retriever


@contextmanager
def generated(passages: int, asked: int) -> Iterator[Encyclopedia]:
    """A world of so many passages with so many questions, its BM25 index open_retriever as a run opens it."""
    with TemporaryDirectory() as scratch:
        world, built = Path(scratch, "world"), Path(scratch, "index")
        write_world(World(passages, 0), world, asked, 1)
        index.build(world / CORPUS, built, IndexPlan.of("bm25"))
        found = questions.load(world / TRAIN)
        yield Encyclopedia(found, open_retriever(RetrievalConfig(), built, Path(scratch, "searches.jsonl")))
