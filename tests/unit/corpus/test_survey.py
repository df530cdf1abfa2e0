"""A corpus is read once: what is written down of it, and what is refused."""

import hashlib
import json
from pathlib import Path
from reprlib import repr as shortened

import numpy as np
import pytest

from sleuth.corpus.survey import BATCH, Survey, survey
from sleuth.errors import InputError

GOOD = b'{"id": "a", "contents": "first"}\n'


def write(folder: Path, content: bytes) -> Path:
    (folder / "corpus.jsonl").write_bytes(content)
    return folder / "corpus.jsonl"


def test_offsets_ranks_and_order_are_plain_arrays(tmp_path: Path) -> None:
    lines = [b'{"id": "b", "contents": "x"}\n', b"\n", b'{"id": 10, "contents": "y"}\n', b'{"id": "9", "contents": ""}']
    content = b"".join(lines)
    found = survey(write(tmp_path, content), tmp_path / "new" / "index")
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


def test_a_corpus_of_many_batches_reports_its_bytes(tmp_path: Path) -> None:
    rows = [json.dumps({"id": str(row), "contents": "x" * 5000}) + "\n" for row in range(2000)]
    corpus = write(tmp_path, "".join(rows).encode())
    heard: list[tuple[str, int, int]] = []
    assert survey(corpus, tmp_path, lambda *report: heard.append(report)).passages == 2000
    assert len(heard) > corpus.stat().st_size // BATCH
    assert heard[-1] == ("reading", corpus.stat().st_size, corpus.stat().st_size)
    assert np.array_equal(np.load(tmp_path / "offsets.npy"), np.cumsum([0, *map(len, rows)]))


@pytest.mark.parametrize("name", ["same", "same\0", "é" * 40, "x" * 5000])
def test_an_id_that_comes_twice_is_refused(tmp_path: Path, name: str) -> None:
    names = ["other", name, "s", name + "!", name, name[:-1] or "z"]
    rows = [json.dumps({"id": each, "contents": "x"}) + "\n" for each in names]
    corpus = write(tmp_path, "\n".join(rows).encode())
    with pytest.raises(InputError) as refusal:
        survey(corpus, tmp_path)
    assert f"{corpus}: passages 2 and 5 have the same id {shortened(name)}; give every" in str(refusal.value)
    assert not (tmp_path / "order.npy").exists()


def test_a_bad_line_is_named_as_the_user_knows_it(tmp_path: Path) -> None:
    corpus = write(tmp_path, GOOD + b"\n" + b'{"id": "b"}\n')
    expected = r'line 3: "contents" is missing; expected a JSON object with the strings "id" and "contents"'
    with pytest.raises(InputError, match=rf"corpus\.jsonl, {expected}"):
        survey(corpus, tmp_path)
    with pytest.raises(InputError, match=rf"^wiki\.gz, {expected}"):
        survey(corpus, tmp_path, source=Path("wiki.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match="is empty; expected on each line"):
        survey(write(tmp_path, content), tmp_path)


def test_a_corpus_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl does not exist"):
        survey(tmp_path / "nowhere.jsonl", tmp_path)
    with pytest.raises(InputError, match=r"cannot be read .*directory"):
        survey(tmp_path, tmp_path / "index")
