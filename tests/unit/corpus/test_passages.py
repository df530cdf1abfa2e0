"""Passages streamed and by row; every kind of bad corpus in one sentence."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sleuth.corpus.passages import CHUNK, PassageStore, build_offsets, stream
from sleuth.errors import InputError
from sleuth.records import Passage

GOOD = b'{"id": "a", "contents": "\\"A\\"\\nfirst"}\n'

BAD_LINES = {
    "no JSON": (b"{id: 1}", "Expecting property name"),
    "half a line": (b'{"id": "b", "cont', "Unterminated string"),
    "not UTF-8": (b'{"id": "b", "contents": "\xff"}', "can't decode byte 0xff"),
    "a list": (b'["b", "text"]', "it holds ['b', 'text']"),
    "no id": (b'{"contents": "text"}', '"id" is missing'),
    "an empty id": (b'{"id": "", "contents": "text"}', '"id" is empty'),
    "a null id": (b'{"id": null, "contents": "text"}', '"id" is None'),
    "a true id": (b'{"id": true, "contents": "text"}', '"id" is True'),
    "no contents": (b'{"id": "b", "text": "text"}', '"contents" is missing'),
    "contents in a list": (b'{"id": "b", "contents": ["text"]}', "\"contents\" is ['text']"),
    "half a surrogate pair": (b'{"id": "b", "contents": "\\ud800"}', "surrogates not allowed"),
    "bottomless": (b"[" * 100_000, "recursion"),
}


def test_streams_rows_and_keeps_what_else_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + b'\n{"id": 7, "contents": "x\\u2028y", "url": "u", "position": 3}')
    assert list(stream(path)) == [Passage("a", '"A"\nfirst'), Passage("7", "x\u2028y", {"url": "u", "position": 3})]


def test_streams_gzip(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD))
    assert [passage.id for passage in stream(path)] == ["a"]


@pytest.mark.parametrize(("line", "problem"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + b"\n" + line)
    with pytest.raises(InputError) as refusal:
        list(stream(path))
    message = str(refusal.value)
    assert message.startswith(f"{path}, line 3: ")
    assert problem in message
    assert message.endswith('; expected a JSON object with the strings "id" and "contents"')


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is empty; expected on each line"):
        list(stream(path))


def test_a_missing_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl does not exist"):
        list(stream(tmp_path / "nowhere.jsonl"))


def test_a_folder_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read .*directory"):
        list(stream(tmp_path))


@pytest.mark.parametrize("content", [gzip.compress(GOOD * 100)[:-20], GOOD], ids=["cut short", "not compressed"])
def test_a_bad_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"corpus\.jsonl\.gz cannot be read"):
        list(stream(path))


def test_the_store_reads_any_row(tmp_path: Path) -> None:
    corpus, offsets = tmp_path / "corpus.jsonl", tmp_path / "offsets.npy"
    rows = [json.dumps({"id": str(row), "contents": "é" * row}, ensure_ascii=False) for row in range(10)]
    corpus.write_text("\n" + "\n\n".join(rows), encoding="utf-8")
    assert build_offsets(corpus, offsets) == 10
    store = PassageStore(corpus, offsets)
    assert len(store) == 10
    assert [store[row] for row in range(10)] == list(stream(corpus))


def test_offsets_are_a_plain_array_of_any_length(tmp_path: Path) -> None:
    corpus, offsets = tmp_path / "corpus.jsonl", tmp_path / "offsets.npy"
    count = 2 * CHUNK + 1
    corpus.write_bytes(GOOD * count)
    assert build_offsets(corpus, offsets) == count
    assert np.array_equal(np.load(offsets), np.arange(count + 1, dtype="<u8") * len(GOOD))


@pytest.mark.parametrize("row", [-1, 1])
def test_the_store_knows_its_rows(tmp_path: Path, row: int) -> None:
    store = _store(tmp_path)
    with pytest.raises(IndexError, match=f"row {row} of a corpus of 1 passages"):
        store[row]


def test_the_store_refuses_another_corpus(tmp_path: Path) -> None:
    _store(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(GOOD + GOOD)
    with pytest.raises(InputError, match="sizes differ; build the index again"):
        PassageStore(tmp_path / "corpus.jsonl", tmp_path / "offsets.npy")


def test_the_store_refuses_a_missing_corpus(tmp_path: Path) -> None:
    _store(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        PassageStore(tmp_path / "other.jsonl", tmp_path / "offsets.npy")


def test_a_corpus_cut_while_in_use_is_an_error(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(GOOD[:10])
    with pytest.raises(InputError, match="changed after indexing: row 0 is unreadable"):
        store[0]


def _store(folder: Path) -> PassageStore:
    (folder / "corpus.jsonl").write_bytes(GOOD)
    build_offsets(folder / "corpus.jsonl", folder / "offsets.npy")
    return PassageStore(folder / "corpus.jsonl", folder / "offsets.npy")
