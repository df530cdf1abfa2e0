"""Passages streamed, surveyed and read by row; bad corpora are one-line errors."""

import codecs
import gzip
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from reprlib import repr as shorten

import numpy as np
import pytest

from sleuth.corpus.passages import BATCH, PassageStore, Survey, stream, survey
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
    "half a pair elsewhere": (b'{"id": "b", "contents": "x", "tags": [{"\\uDC00": 1}]}', "surrogates not allowed"),
    "two rows on a line": (b'{"id": "b", "contents": "x"} {"id": "c", "contents": "x"}', "Extra data"),
    "bottomless": (b"[" * 100_000, "recursion"),
}


def test_stream_keeps_extra_fields(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + b'\n{"id": 7, "contents": "x\\u2028y", "url": "u", "position": 3}')
    assert list(stream(path)) == [Passage("a", '"A"\nfirst'), Passage("7", "x\u2028y", {"url": "u", "position": 3})]


def test_streams_gzip(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD))
    assert [passage.id for passage in stream(path)] == ["a"]


@pytest.mark.parametrize(("line", "problem"), BAD_LINES.values(), ids=BAD_LINES)
def test_bad_line_is_reported_with_its_number(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + b"\n" + line)
    with pytest.raises(InputError) as refusal:
        list(stream(path))
    message = str(refusal.value)
    assert message.startswith(f"{path}, line 3: ")
    assert problem in message
    assert message.endswith('; expected a JSON object with the strings "id" and "contents"')


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r'is empty.*"contents"'):
        list(stream(path))


def test_missing_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl does not exist"):
        list(stream(tmp_path / "nowhere.jsonl"))


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read .*directory"):
        list(stream(tmp_path))


@pytest.mark.parametrize("content", [gzip.compress(GOOD * 100)[:-20], GOOD], ids=["cut short", "not compressed"])
def test_damaged_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"corpus\.jsonl\.gz cannot be read"):
        list(stream(path))


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "a", "contents": "x", "score": NaN, "most": -Infinity}')
    assert list(stream(path)) == [Passage("a", "x", {"score": None, "most": None})]


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b'  {"id": "a", "contents": "x"} \r\n')
    assert list(stream(path)) == [Passage("a", "x")]


@pytest.mark.parametrize("blank", [b"\n", b" \t\r\n", b"\x0c\n", b"\x0b"])
def test_store_reads_a_row_before_a_blank_line(tmp_path: Path, blank: bytes) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(b'{"id": "a", "contents": "b"}\n' + blank)
    survey(corpus, tmp_path)
    assert PassageStore(corpus, tmp_path)[0] == Passage("a", "b")


def test_store_reads_any_row(tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(row), "contents": "é" * row}, ensure_ascii=False) for row in range(10)]
    store = _store(tmp_path, ("\n" + "\n\n".join(rows)).encode())
    assert len(store) == 10
    assert [store[row] for row in range(10)] == list(stream(tmp_path / "corpus.jsonl"))


def test_store_finds_passages_by_id(tmp_path: Path) -> None:
    names = ["b", "10", "9", "é", "\U0001f600", "\uffee", "B", "a b"]
    rows = [json.dumps({"id": name, "contents": name * 2}) + "\n" for name in names]
    store = _store(tmp_path, "".join(rows).encode())
    assert [store.row_of(name) for name in names] == list(range(len(names)))
    assert store.find("é") == Passage("é", "éé")
    assert [store.find(name) for name in ("", "1", "zz", "\U0001f601", "\ud800")] == [None] * 5
    assert [names[row] for row in np.argsort(store.ranks)] == sorted(names)


@pytest.mark.parametrize("row", [-1, 1])
def test_store_rejects_rows_out_of_range(tmp_path: Path, row: int) -> None:
    store = _store(tmp_path)
    with pytest.raises(IndexError, match=f"row {row} .* 1 passages"):
        store[row]


def test_store_refuses_another_corpus(tmp_path: Path) -> None:
    _store(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(GOOD + GOOD)
    with pytest.raises(InputError, match="sizes differ; build the index again"):
        PassageStore(tmp_path / "corpus.jsonl", tmp_path)


def test_store_refuses_a_missing_corpus(tmp_path: Path) -> None:
    _store(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        PassageStore(tmp_path / "other.jsonl", tmp_path)


@pytest.mark.parametrize("name", ["offsets.npy", "ranks.npy", "order.npy"])
def test_store_refuses_truncated_arrays(tmp_path: Path, name: str) -> None:
    _store(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-2])
    with pytest.raises(InputError, match=rf"{name} is damaged"):
        PassageStore(tmp_path / "corpus.jsonl", tmp_path)
    np.save(tmp_path / name, np.empty(0, np.uint32))
    with pytest.raises(InputError, match="build the index again"):
        PassageStore(tmp_path / "corpus.jsonl", tmp_path)


def test_corpus_truncated_in_use_is_an_error(tmp_path: Path) -> None:
    store = _store(tmp_path)
    (tmp_path / "corpus.jsonl").write_bytes(GOOD[:10])
    with pytest.raises(InputError, match="changed after indexing: row 0 is unreadable"):
        store[0]
    with pytest.raises(InputError, match="changed after indexing: row 0 is unreadable"):
        store.find("a")


def test_many_threads_can_read_one_store(tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(row), "contents": "x" * row}) + "\n" for row in range(500)]
    store = _store(tmp_path, "".join(rows).encode())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(store.find, [str(row) for row in range(500)]))
    assert found == list(stream(tmp_path / "corpus.jsonl"))


def _store(folder: Path, content: bytes = GOOD) -> PassageStore:
    (folder / "corpus.jsonl").write_bytes(content)
    survey(folder / "corpus.jsonl", folder)
    return PassageStore(folder / "corpus.jsonl", folder)


SURVEYED = b'{"id": "a", "contents": "first"}\n'


def write_corpus(folder: Path, content: bytes) -> Path:
    (folder / "corpus.jsonl").write_bytes(content)
    return folder / "corpus.jsonl"


def test_survey_writes_offsets_ranks_and_order(tmp_path: Path) -> None:
    lines = [b'{"id": "b", "contents": "x"}\n', b"\n", b'{"id": 10, "contents": "y"}\n', b'{"id": "9", "contents": ""}']
    content = b"".join(lines)
    found = survey(write_corpus(tmp_path, content), tmp_path / "new" / "index")
    assert found == Survey(3, len(content), hashlib.sha256(content).hexdigest())
    arrays = {path.name: np.load(path) for path in (tmp_path / "new" / "index").iterdir()}
    assert arrays.keys() == {"offsets.npy", "ranks.npy", "order.npy"}
    assert arrays["offsets.npy"].tolist() == [0, 30, 58, len(content)]
    assert arrays["order.npy"].tolist() == [1, 2, 0]
    assert arrays["ranks.npy"].tolist() == [2, 0, 1]
    assert {name: values.dtype.str for name, values in arrays.items()} == {
        "offsets.npy": "<u8",
        "ranks.npy": "<u4",
        "order.npy": "<u4",
    }


def test_survey_reports_progress_in_bytes(tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(row), "contents": "x" * 5000}) + "\n" for row in range(2000)]
    corpus = write_corpus(tmp_path, "".join(rows).encode())
    reports: list[tuple[str, int, int]] = []
    assert survey(corpus, tmp_path, lambda *report: reports.append(report)).passages == 2000
    assert len(reports) > corpus.stat().st_size // BATCH
    assert reports[-1] == ("reading", corpus.stat().st_size, corpus.stat().st_size)
    assert np.array_equal(np.load(tmp_path / "offsets.npy"), np.cumsum([0, *map(len, rows)]))


@pytest.mark.parametrize("name", ["same", "same\0", "é" * 40, "x" * 5000])
def test_survey_refuses_repeated_ids(tmp_path: Path, name: str) -> None:
    names = ["other", name, "s", name + "!", name, name[:-1] or "z"]
    rows = [json.dumps({"id": each, "contents": "x"}) + "\n" for each in names]
    corpus = write_corpus(tmp_path, "\n".join(rows).encode())
    with pytest.raises(InputError) as refusal:
        survey(corpus, tmp_path)
    assert f"{corpus}: passages 2 and 5 have the same id {shorten(name)}; give every" in str(refusal.value)
    assert not (tmp_path / "order.npy").exists()


def test_survey_reports_a_bad_line_under_the_source_name(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, SURVEYED + b"\n" + b'{"id": "b"}\n')
    expected = r'line 3: "contents" is missing; expected a JSON object with the strings "id" and "contents"'
    with pytest.raises(InputError, match=rf"corpus\.jsonl, {expected}"):
        survey(corpus, tmp_path)
    with pytest.raises(InputError, match=rf"^wiki\.gz, {expected}"):
        survey(corpus, tmp_path, source=Path("wiki.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_survey_refuses_an_empty_corpus(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r'is empty.*"contents"'):
        survey(write_corpus(tmp_path, content), tmp_path)


def test_survey_refuses_an_unreadable_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl does not exist"):
        survey(tmp_path / "nowhere.jsonl", tmp_path)
    with pytest.raises(InputError, match=r"cannot be read .*directory"):
        survey(tmp_path, tmp_path / "index")
