"""The command train: errors of one line that leave no trace, and the final table."""

import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import PreTrainedModel

from sleuth.cli.main import main
from sleuth.cli.train import print_summary, print_table
from sleuth.config.recipe import load, with_absolute_paths
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.run import Run
from sleuth.train.manifest import create_run

QUESTION = {"id": "q1", "question": "Where is Oslo?", "golden_answers": ["Norway"]}
RECIPE = """
model.policy = "model"
agent.context_tokens = 64
data = { corpus = "corpus.jsonl", train = "train.jsonl", test = "test.jsonl" }
"""

REFUSALS = {
    "missing questions": (["--set", "data.train=no.jsonl"], "data.train .*{home}/no.jsonl"),
    "missing corpus": (["--set", "data.corpus=no.jsonl"], "data.corpus .*{home}/no.jsonl"),
    "empty corpus": (["--set", "data.corpus=empty.jsonl"], "{home}/empty.jsonl"),
    "no questions": (["--set", "data.test=empty.jsonl"], "{home}/empty.jsonl"),
    "question without answer": (["--set", "data.test=bare.jsonl"], "{home}/bare.jsonl, line 1"),
    "missing model": (["--set", "model.policy=no"], "{home}/no"),
    "model without tokenizer": (["--set", "model.policy=bare"], "{home}/bare .*tokenizer"),
    "folder that exists": (["--out", "model"], "model .*exists"),
    "unknown key": (["--set", "train.step=3"], "train.step;.*train.steps"),
    "wrong type": (["--set", "train.steps=many"], 'train.steps .*"many"'),
    "setting without effect": (["--set", "algorithm.constant=9"], "algorithm.constant"),
    "nothing to compare": (["--set", "train.samples=1"], "train.samples = 1 .*algorithm.advantage = grpo"),
    "context too long": (["--set", "agent.context_tokens=4096"], "agent.context_tokens = 4096 .*512"),
    "batch smaller than a group": (["--set", "train.updates=17"], "train.updates = 17 .*16 groups"),
    "name with a path": (["--set", "name=../x"], "name = '../x' "),
    "folder that cannot be": (["--out", "/proc/run"], "/proc/run"),
    "unknown name": (["--set", "algorithm.advantage=gppo"], "algorithm.advantage = 'gppo'"),
}


@pytest.fixture
def home(tmp_path: Path, tiny: Callable[..., PreTrainedModel], tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a recipe and its files."""
    monkeypatch.chdir(tmp_path)
    Policy(tiny(), tokens).save(tmp_path / "model")
    Path("bare").mkdir()
    Path("bare/config.json").write_text("{}")
    Path("own.toml").write_text(RECIPE)
    Path("corpus.jsonl").write_text(json.dumps({"id": "p1", "contents": '"Oslo"\nOslo lies in Norway.'}) + "\n")
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text(json.dumps(QUESTION) + "\n")
    Path("empty.jsonl").write_text("")
    Path("bare.jsonl").write_text(json.dumps({**QUESTION, "golden_answers": []}) + "\n")
    return tmp_path


def refused(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line `sleuth train` leaves on stderr when it exits with 2; the lines before it name stages."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["sleuth", "train", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    *stages, last = printed.err.splitlines()
    assert set(stages) <= {"indexing"}
    return last


@pytest.mark.parametrize(("words", "facts"), REFUSALS.values(), ids=REFUSALS)
def test_bad_input_is_one_line_and_leaves_no_trace(
    words: list[str], facts: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    last = refused("own.toml", "--out", "run", *words, monkeypatch=monkeypatch, capsys=capsys)
    assert re.search(facts.format(home=home), last)
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


@pytest.mark.parametrize("resumed", [False, True])
def test_an_unreachable_retrieval_server_is_found_before_training(
    resumed: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny model never searches, so that nothing else in the run would notice."""
    dead = 'retrieval = { index = "http://127.0.0.1:1", service.deadline = 0.2 }'
    Path("served.toml").write_text(RECIPE.replace('corpus = "corpus.jsonl", ', "") + dead)
    if resumed:
        create_run(with_absolute_paths(load("served.toml")), Path("run"))
    before = sorted(home.rglob("*"))
    words = ["--resume", "run"] if resumed else ["served.toml", "--out", "run"]
    last = refused(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert "http://127.0.0.1:1 " in last
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], "recipe .*agent-lightning-"),
        (["quikstart"], "'quikstart'.*'quickstart'"),
        (["--resume", "model"], "model .*manifest.json"),
        (["--resume", "nowhere"], "nowhere "),
        (["own.toml", "--resume", "model"], "--resume .*--out"),
        (["--resume", "model", "--set", "train.steps=9"], "model .*manifest.json"),
        (["--resume", "model", "--out", "other"], "--resume .*--out"),
    ],
)
def test_invalid_runs_and_recipes_are_rejected(
    words: list[str], facts: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(facts, refused(*words, monkeypatch=monkeypatch, capsys=capsys))


def test_run_without_its_report_is_finished_by_resuming_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed between writing its summary and its report."""
    small = (
        "train.steps=1",
        "train.questions=1",
        "train.samples=2",
        "evaluate.before=false",
        "evaluate.after=false",
        "agent.context_tokens=400",
    )
    begun = ["own.toml", "--out", "run", *(word for each in small for word in ("--set", each))]
    for words in (begun, ["--resume", "run"]):
        monkeypatch.setattr(sys, "argv", ["sleuth", "train", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        assert not caught.value.code
        report = (home / "run" / "report.html").read_text()
        (home / "run" / "report.html").unlink()
        assert report.startswith("<!doctype html>")


def test_damaged_manifest_is_rejected(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(home / "run", {"config": {"train": {"momentum": 0.5}}, "inputs": {}})
    last = refused("--resume", "run", monkeypatch=monkeypatch, capsys=capsys)
    assert "train.momentum" in last
    (run.path / "manifest.json").write_text("{")
    assert "manifest.json" in refused("--resume", "run", monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ("train.samples=4", "train.samples .*train.steps, train.save_every"),
        ("algorithm.loss=gspo", "algorithm.loss .*train.steps"),
        ("train.step=9", "train.step;.*train.steps"),
        ("train.keep_best=true", "train.keep_best .*evaluate.every = 0"),
    ],
)
def test_a_resumed_run_keeps_its_settings(
    change: str, facts: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = create_run(with_absolute_paths(load("own.toml")), home / "run")
    before = run.manifest()
    last = refused("--resume", "run", "--set", change, monkeypatch=monkeypatch, capsys=capsys)
    assert re.search(f"sleuth: .*{facts}", last)
    assert run.manifest() == before


def estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "count": 9}


def summary(**more: Any) -> dict[str, Any]:
    change = {"before": estimate(0.1), "after": estimate(0.8), "gain": estimate(0.7)}
    whole = {f"em_{name}": each for name, each in change.items()}
    sampled = {f"em_sampled_{name}": estimate(0.5) for name in ("before", "after")}
    searches = {"before": 0.0, "after": 2.04}
    took = {"steps": 5, "seconds": 61.4, "peak_memory_gib": 0.5}
    kinds = {"em_by_hops": {"1 hop": change}, "searches_by_hops": {"1 hop": searches, "all": searches}}
    return {**whole, **sampled, **kinds, **took, "ceiling": None, **more}


def table(found: dict[str, Any], *columns: str) -> dict[str, dict[str, str]]:
    """The closing table by rows and columns, cut where its header has them."""
    console = Console(file=StringIO(), width=160, markup=False)
    print_table(console, found)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    header = next(line for line in lines if "before" in line)
    starts = [header.index(column) for column in columns]
    bounds = list(zip(columns, starts, [*starts[1:], None], strict=True))
    rows = [{column: line[low:high].strip() for column, low, high in bounds} for line in lines]
    return {row["kind"]: row for row in rows}


@pytest.mark.parametrize("asked", [(), ("before",), ("after",), ("before", "after")])
def test_summary_shows_the_evaluations_that_ran(asked: tuple[str, ...]) -> None:
    whole = summary()
    known = {name: value for name, value in whole.items() if not name.startswith(("em_", "searches_"))}
    known |= {f"em_{when}": whole[f"em_{when}"] for when in asked}
    known |= {"em_gain": whole["em_gain"]} | whole if len(asked) == 2 else {}
    console = Console(file=StringIO(), width=160, markup=False)
    print_summary(console, known)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert ("Held-out questions" in printed) == (len(asked) == 2)
    for when, shown in (("before", ".10 [.00, .20]"), ("after", ".80 [.70, .90]")):
        assert (shown in printed) == (when in asked)
        assert (f"exact match {when} training" in printed) == (asked == (when,))
    assert printed.endswith("5 steps in 61 s, 0.50 GiB at most\n")


COLUMNS = ("kind", "before", "after", "gain", "searches", "questions")


def test_table_shows_before_and_after_with_intervals() -> None:
    rows = table(summary(), *COLUMNS)
    change = {"before": ".10 [.00, .20]", "after": ".80 [.70, .90]", "gain": ".70 [.60, .80]", "searches": "0.0 -> 2.0"}
    assert rows["1 hop"] == {"kind": "1 hop", **change, "questions": "9"}
    assert rows["all, greedy"] == {"kind": "all, greedy", **change, "questions": "9"}
    assert list(rows["all, sampled"].values()) == ["all, sampled", ".50 [.40, .60]", ".50 [.40, .60]", "", "", "9"]


def test_summary_counts_lost_questions() -> None:
    found = summary(held_out={"questions": 10, "lost": {"after": {"search_unavailable": 1}}})
    found["em_before"] = {**estimate(0.1), "count": 10}
    found["em_by_hops"]["1 hop"]["questions"] = 9
    rows = table(found, *COLUMNS)
    assert (rows["1 hop"]["questions"], rows["all, greedy"]["questions"]) == ("9", "10 -> 9 of 10")
    console = Console(file=StringIO(), width=160, markup=False)
    print_summary(console, found)
    assert isinstance(console.file, StringIO)
    assert "after, 1 of 10 (search unavailable 1)." in console.file.getvalue()
    print_summary(
        console, {name: found[name] for name in ("em_after", "held_out", "steps", "seconds", "peak_memory_gib")}
    )
    assert "exact match after training, 9 of 10 held-out questions, greedy: .80" in console.file.getvalue()


@pytest.mark.parametrize(("known", "shown"), [({"1 hop": estimate(0.9)}, ".90 [.80, 1.00]"), ({}, "")])
def test_ceiling_has_a_column_if_it_is_known(known: dict[str, Any], shown: str) -> None:
    found = summary(ceiling={"em": estimate(0.85), "by_hops": known})
    rows = table(found, *COLUMNS[:4], "expert's ceiling", "searches", "questions")
    assert (rows["1 hop"]["expert's ceiling"], rows["1 hop"]["searches"]) == (shown, "0.0 -> 2.0")
    assert rows["all, greedy"]["expert's ceiling"] == ".85 [.75, .95]"
