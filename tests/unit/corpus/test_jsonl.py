"""Overlong lines in small compressed files are refused by every reader."""

import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sleuth.corpus import passages
from sleuth.corpus.jsonl import LONGEST_LINE, line_batches, text_lines
from sleuth.corpus.sources import plain_corpus
from sleuth.errors import InputError
from sleuth.retrieval.index import build

ROW = {"id": "1", "contents": "a"}


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a good row and one of 100 MiB into a small compressed file."""
    path = tmp_path_factory.mktemp("bomb") / "corpus.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(json.dumps(ROW).encode() + b'\n{"id": "2", "contents": "')
        for _ in range(100):
            file.write(b"a" * 2**20)
        file.write(b'"}\n')
    assert path.stat().st_size < 2**18
    return path


READERS: dict[str, Callable[[Path, Path], object]] = {
    "index build": lambda path, folder: build(path, folder / "index"),
    "several files": lambda path, folder: plain_corpus(Path(f"{_beside(path, folder)}/*.gz"), folder / "made"),
    "passages": lambda path, _: list(passages.stream(path)),
    "questions and traces": lambda path, _: list(text_lines(path, "question file")),
}


def _beside(path: Path, folder: Path) -> Path:
    """Make a folder with the file and another."""
    (folder / "several").mkdir()
    (folder / "several" / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({**ROW, "id": "0"}).encode() + b"\n"))
    (folder / "several" / "b.jsonl.gz").write_bytes(path.read_bytes())
    return folder / "several"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_overlong_line_is_refused_with_its_number(
    read: Callable[[Path, Path], object], bomb: Path, tmp_path: Path
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"\.jsonl\.gz, line 2 is longer than .*32 MiB"):
            read(bomb, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 6 * LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_overlong_parquet_cell_is_refused_with_its_row(tmp_path: Path) -> None:
    table = pyarrow.table({"id": ["1", "2"], "contents": ["a", "a" * (LONGEST_LINE + 1)]})
    parquet.write_table(table, tmp_path / "corpus.parquet")
    with pytest.raises(InputError, match=r"corpus\.parquet, line 2 is longer than .*32 MiB"):
        plain_corpus(tmp_path / "corpus.parquet", tmp_path / "made")


@given(content=st.binary(max_size=200).map(lambda drawn: drawn.replace(b"a", b"\n")), size=st.integers(1, 50))
def test_batches_hold_the_lines_of_the_file(content: bytes, size: int) -> None:
    batches: Iterator[list[bytes]] = line_batches(BytesIO(content), Path("x"), size)
    assert list(chain.from_iterable(batches)) == BytesIO(content).readlines()
