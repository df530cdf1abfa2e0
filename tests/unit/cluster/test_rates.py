"""Interpolation of decode rates, and rates as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.cluster.rates import rates_row, read_rates
from sleuth.errors import InputError


def test_decode_steps_are_linear_between_and_beyond_the_points(case: Any) -> None:
    rates = case.rates(decode=((10, 1000.0), (1, 200.0), (20, 1000.0)))  # 5 ms, 10 ms, 20 ms a step
    steps = [rates.decode_step(lanes) for lanes in (1, 10, 15, 20, 40)]
    assert steps == pytest.approx([0.005, 0.01, 0.015, 0.02, 0.04])
    assert case.rates(decode=((8, 800.0),)).decode_step(64) == 0.01


def test_fewer_sequences_than_measured_take_no_less(case: Any) -> None:
    assert case.rates(decode=((4, 400.0), (8, 400.0))).decode_step(1) == 0.01


def test_rates_survive_json(case: Any, tmp_path: Path) -> None:
    rates = case.rates(score=123.0, groups=((case.episode((1, 2, True), (3, 4, False), reward=0.5),),))
    (tmp_path / "rates.json").write_text(json.dumps(rates_row(rates)))
    assert read_rates(tmp_path / "rates.json", {}) == rates


def test_a_file_may_give_some_rates_only(case: Any, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text('{"search": 2.5, "decode": [[1, 10], [8, 70]]}')
    found = read_rates(path, rates_row(case.rates()))
    assert (found.search, found.decode, found.train) == (2.5, ((1, 10.0), (8, 70.0)), 10_000.0)
    assert found.source == str(path)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ('{"decoding": 1}', ["decoding"]),
        ('{"train": -1}', ["train", "-1"]),
        ('{"train": 0}', ["train", "0"]),
        ('{"search": "slow"}', ["search", "slow"]),
        ('{"decode": []}', ["decode"]),
        ('{"decode": [[1, 10], [1, 20]]}', ["twice"]),
        ('{"groups": [[]]}', ["groups.0"]),
        ('{"overlap": 1.5}', ["overlap", "1.5"]),
        ("[1]", ["list"]),
        ("{", ["JSON"]),
    ],
    ids=["unknown", "negative", "zero", "text", "empty", "twice", "group", "overlap", "list", "broken"],
)
def test_bad_files_are_named(case: Any, tmp_path: Path, content: str, facts: list[str]) -> None:
    path = tmp_path / "rates.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_rates(path, rates_row(case.rates()))
    assert all(fact in str(caught.value) for fact in [str(path), *facts])


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json"):
        read_rates(tmp_path / "nowhere.json", {})
