"""The vocabulary on disk."""

from pathlib import Path

import numpy as np
import pytest

from sleuth.errors import InputError
from sleuth.retrieval.bm25.inverted_index import Vocabulary, write_vocabulary


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_numbers(tmp_path: Path, size: int) -> None:
    terms = [f"té{number}rm" for number in range(size)]
    write_vocabulary(terms, tmp_path)
    table = Vocabulary(tmp_path, size)
    assert [table.number(term) for term in terms] == list(range(size))
    assert [table.number(term) for term in ("té", "té0r", "té0rms", "", f"té{size}rm")] == [None] * 5


@pytest.mark.parametrize("name", ["terms.buckets.npy", "terms.borders.npy", "terms.text.npy", "terms.numbers.npy"])
def test_truncated_table_is_rejected(tmp_path: Path, name: str) -> None:
    write_vocabulary(["one", "two", "three"], tmp_path)
    np.save(tmp_path / name, np.load(tmp_path / name)[:-1])
    with pytest.raises(InputError, match="build the index again"):
        Vocabulary(tmp_path, 3)
