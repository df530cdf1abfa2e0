"""JSONL files with offsets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.json_files import Row, read_row, read_rows, write_rows


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_read_in_order_and_by_number(tmp_path: Path) -> None:
    rows: list[Row] = [{"n": n, "text": "é\u2028\n" * n} for n in range(5)]
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    assert list(read_rows(path)) == rows
    assert [read_row(path, n) for n in (3, 0, 4)] == [rows[3], rows[0], rows[4]]
    starts = [int.from_bytes(path.with_suffix(".offsets").read_bytes()[8 * n : 8 * n + 8], "little") for n in range(5)]
    assert [json.loads(path.read_bytes()[start:].split(b"\n")[0])["n"] for start in starts] == list(range(5))


@pytest.mark.parametrize("n", [-1, 2])
def test_row_out_of_range_is_refused(tmp_path: Path, n: int) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{}, {}])
    with pytest.raises(InputError, match=f"no row {n}; .* 2 rows"):
        read_row(path, n)


@pytest.mark.parametrize(("line", "problem"), [("{", "line 2 is not valid JSON"), ("[]", "line 2 holds a list")])
def test_bad_row_is_reported_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{{}}\n{line}\n")
    with pytest.raises(InputError, match=problem):
        list(read_rows(path))


def test_failed_write_keeps_the_earlier_file(tmp_path: Path) -> None:
    def breaking() -> Iterator[Row]:
        yield {"n": 1}
        raise RuntimeError("broke off")

    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"n": 0}])
    with pytest.raises(RuntimeError, match="broke off"):
        write_rows(path, breaking())
    assert read_row(path, 0) == {"n": 0}
    assert names(tmp_path) == ["rows.jsonl", "rows.offsets"]
