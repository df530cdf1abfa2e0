"""The commands evaluate, compare and coldstart: rejected options, and the output of compare."""

import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.evaluate import compare, evaluate
from sleuth.cli.sft import coldstart
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.runs.run import Run


def test_existing_result_is_not_overwritten(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    (tmp_path / "result.json").write_text("precious")
    with pytest.raises(InputError, match=r"result\.json"):
        evaluate(str(run.path), out=tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == "precious"


def test_other_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json.*config\.json"):
        evaluate(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({}, "--rescore FOLDER"),
        ({"model": "quickstart", "rescore": Path("e")}, "--rescore FOLDER"),
        ({"model": "quickstart", "judge": "http://host/v1"}, "--judge-model"),
        ({"model": "quickstart", "judge": "host", "judge_model": "wise"}, "--judge host"),
        ({"model": "quickstart", "suite": ["nowhere.jsonl"], "method": "direct"}, "--suite nowhere.jsonl"),
        ({"rescore": Path("nowhere")}, r"nowhere.*manifest\.json"),
        ({"rescore": Path("e"), "limit": 3}, "--rescore"),
        ({"rescore": Path("e"), "temperature": 1.0}, "--rescore"),
        ({"rescore": Path("e"), "seed": 5}, "--rescore"),
        ({"rescore": Path("e"), "data": Path("x")}, "--rescore"),
        ({"rescore": Path("e"), "judge_key_env": "X"}, "--judge-key-env"),
        ({"model": "quickstart", "suite": ["a.jsonl"], "data": Path("x")}, r"--data .*search-r1"),
        ({"model": "quickstart", "suite": ["a.jsonl"], "seed": 5}, r"--seed .*--temperature"),
        ({"model": "quickstart", "out": Path("nowhere/x.json")}, r"nowhere/x\.json"),
        ({"model": "quickstart", "out": Path("/proc/x.json")}, r"/proc/x\.json"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], facts: str) -> None:
    with pytest.raises(UserError, match=facts):
        evaluate(**options)


@pytest.fixture
def asked(tmp_path: Path) -> str:
    row = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(row) + "\n")
    return str(tmp_path / "asked.jsonl")


@pytest.mark.parametrize(
    ("shots", "facts"),
    [
        ("3", r"--shots 3 .*FILE:3"),
        ("nowhere.jsonl", r"nowhere\.jsonl"),
        ("0", r"--shots 0 .*at least 1"),
        ("{asked}:0", r"asked\.jsonl:0 .*at least 1"),
        ("{asked}:1", r"--shots .*1.* 0 questions"),  # the question itself
        ("{again}:1", r"--shots .*1.* 0 questions"),  # in another spelling
    ],
)
def test_invalid_shots_are_rejected(asked: str, shots: str, facts: str) -> None:
    again = Path(asked).with_name("again.jsonl")
    again.write_text(Path(asked).read_text().replace("Who?", "  who  "))
    with pytest.raises(UserError, match=facts):
        evaluate("quickstart", suite=[asked], method="direct", shots=shots.format(asked=asked, again=again))


def test_unsampled_questions_are_no_examples(asked: str) -> None:
    row = {"id": "q2", "question": "Where?", "golden_answers": ["Oslo"]}
    with Path(asked).open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"--shots .*1.* 0 questions"):
        evaluate("quickstart", suite=[asked], method="direct", limit=1, shots=f"{asked}:1")


def evaluation(folder: Path, *ems: float) -> Path:
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
    first, second = evaluation(tmp_path / "old", 0.0, 1.0, 0.0), evaluation(tmp_path / "new", 1.0, 1.0, 0.0)
    compare(first, second / "results.json", json_file=tmp_path / "kept.json")
    printed = capsys.readouterr().out
    assert printed.startswith("# EM: new against old\n")
    assert "| all questions | 3 | 0.333 | 0.667 | +0.333 [" in printed
    assert "- Where is 0? (nq; expected: Oslo) A: (no answer) B: Oslo" in printed
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["mean"]["em"]["gain"]["value"] == pytest.approx(1 / 3)
    assert [row["id"] for row in kept["changed"]["won"]] == ["0"]


def test_missing_measures_and_evaluations_are_rejected(tmp_path: Path) -> None:
    first, second = evaluation(tmp_path / "old", 0.0), evaluation(tmp_path / "new", 1.0)
    with pytest.raises(ConfigError, match=r"--measure emm .*em, f1"):
        compare(first, second, measure="emm")
    with pytest.raises(ConfigError, match="--measure judge"):
        compare(first, second, measure="judge")
    with pytest.raises(InputError, match=str(tmp_path)):
        compare(first, tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        compare(first, tmp_path / "nowhere")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match=r"sleuth evaluate .*run"):
        compare(first, tmp_path / "run")


def test_cold_start_does_not_overwrite_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        coldstart(out=tmp_path)
    assert list(tmp_path.iterdir()) == []
