"""The commands evaluate, compare and coldstart: what they refuse before any work, and what compare prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.coldstart import coldstart
from sleuth.cli.compare import compare
from sleuth.cli.evaluate import evaluate
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.runs.run import Run


def test_result_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    (tmp_path / "result.json").write_text("precious")
    with pytest.raises(InputError, match=r"result\.json is already there; name a new file"):
        evaluate(str(run.path), out=tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == "precious"


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        evaluate(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "give the folder of a run or a model to evaluate, or --rescore FOLDER"),
        ({"model": "quickstart", "rescore": Path("e")}, "one of the two"),
        ({"model": "quickstart", "judge": "http://host/v1"}, "--judge and --judge-model belong together"),
        ({"model": "quickstart", "judge": "host", "judge_model": "wise"}, "--judge host"),
        ({"model": "quickstart", "suite": ["nowhere.jsonl"], "method": "direct"}, "--suite nowhere.jsonl"),
        ({"rescore": Path("nowhere")}, "nowhere has no manifest.json"),
        ({"rescore": Path("e"), "limit": 3}, "--rescore asks nothing"),
        ({"rescore": Path("e"), "temperature": 1.0}, "--rescore asks nothing"),
        ({"rescore": Path("e"), "seed": 5}, "--rescore asks nothing"),
        ({"rescore": Path("e"), "data": Path("x")}, "--rescore asks nothing"),
        ({"rescore": Path("e"), "judge_key_env": "X"}, "--judge-key-env has no effect without --judge"),
        ({"model": "quickstart", "suite": ["a.jsonl"], "data": Path("x")}, "--data has no effect without a suite by n"),
        ({"model": "quickstart", "suite": ["a.jsonl"], "seed": 5}, "--seed has no effect without --temperature"),
        ({"model": "quickstart", "out": Path("nowhere/x.json")}, "nowhere/x.json cannot be written: there is no folde"),
        ({"model": "quickstart", "out": Path("/proc/x.json")}, "/proc/x.json cannot be written .*; choose another fol"),
    ],
)
def test_what_cannot_be_evaluated_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        evaluate(**options)


@pytest.fixture
def asked(tmp_path: Path) -> str:
    row = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row) + "\n")
    return str(tmp_path / "asked.jsonl")


@pytest.mark.parametrize(
    ("shots", "sentence"),
    [
        ("3", "--shots 3 names no file, and a model has no questions of its own; give FILE:3"),
        ("nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("0", "--shots 0 asks for no examples; leave it out, or give at least 1"),
        ("{asked}:0", "asked.jsonl:0 asks for no examples"),
        ("{asked}:1", "1 examples asked for, and there are 0 questions"),  # what is asked is no example
        ("{again}:1", "1 examples asked for, and there are 0 questions"),  # in whatever spelling
    ],
)
def test_examples_that_cannot_be_had_are_refused(asked: str, shots: str, sentence: str) -> None:
    again = Path(asked).with_name("again.jsonl")
    again.write_text(Path(asked).read_text().replace("Who?", "  who  "))
    with pytest.raises(UserError, match=sentence):
        evaluate("quickstart", suite=[asked], method="direct", shots=shots.format(asked=asked, again=again))


def test_what_a_sample_left_out_is_no_example_either(asked: str) -> None:
    row = {"id": "q2", "question": "Where?", "golden_answers": ["Oslo"]}
    with Path(asked).open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="1 examples asked for, and there are 0 questions"):
        evaluate("quickstart", suite=[asked], method="direct", limit=1, shots=f"{asked}:1")


def marks(folder: Path, *ems: float) -> Path:
    folder.mkdir()
    rows = (
        {
            "id": str(number),
            "data_source": "nq",
            "question": f"Where is {number}?",
            "golden_answers": ["Oslo"],
            "answer": "Oslo" if em else None,
            "values": {"em": em, "f1": em},
        }
        for number, em in enumerate(ems)
    )
    (folder / "marks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "results.json").write_text("{}")
    return folder


def test_two_evaluations_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = marks(tmp_path / "old", 0.0, 1.0, 0.0), marks(tmp_path / "new", 1.0, 1.0, 0.0)
    compare(first, second / "results.json", json_file=tmp_path / "kept.json")
    printed = capsys.readouterr().out
    assert printed.startswith("# EM: new against old\n")
    assert "| all questions | 3 | 0.333 | 0.667 | +0.333 [" in printed
    assert "- Where is 0? (nq; expected: Oslo) A: (no answer) B: Oslo" in printed
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["mean"]["em"]["gain"]["value"] == pytest.approx(1 / 3)
    assert [row["id"] for row in kept["changed"]["won"]] == ["0"]


def test_measures_that_are_not_there_are_refused(tmp_path: Path) -> None:
    first, second = marks(tmp_path / "old", 0.0), marks(tmp_path / "new", 1.0)
    with pytest.raises(ConfigError, match="--measure emm is unknown; expected one of em, f1"):
        compare(first, second, measure="emm")
    with pytest.raises(ConfigError, match="--measure judge was not measured in both"):
        compare(first, second, measure="judge")
    with pytest.raises(InputError, match="not a finished evaluation"):
        compare(first, tmp_path)
    with pytest.raises(InputError, match="nowhere does not exist"):
        compare(first, tmp_path / "nowhere")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match=r"sleuth evaluate .*run"):
        compare(first, tmp_path / "run")


def test_cold_start_leaves_an_existing_folder_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        coldstart(out=tmp_path)
    assert list(tmp_path.iterdir()) == []
