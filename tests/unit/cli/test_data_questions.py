"""sleuth data make with a teacher and for documents, sleuth data split and sleuth data review."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sleuth.cli.main import app
from sleuth.corpus import passages, questions
from sleuth.errors import ConfigError, InputError, UserError

TOOLS = [("brador", "gzip"), ("fenlum", "bzip2"), ("kelnip", "lzma"), ("rudsab", "zstd")]


def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    for number, (name, packer) in enumerate(TOOLS):
        text = (
            f"# {name}(1)\n\n--fast{number}\n\nPass the whole archive to the {packer} program of the system.\n\n"
            f"The archives of the {name} tool are compressed by the {packer} program and never by another one.\n"
        )
        (docs / f"{name}.md").write_text(text)
    return docs


def run(*arguments: object) -> str:
    ended = CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def refused(*arguments: object) -> UserError:
    with pytest.raises(UserError) as error:
        CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)
    return error.value


def teach(stage: Any) -> None:
    """A teacher that asks which program compresses, and reads it from the text."""

    def play(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        name, packer = re.search(r"of the (\w+) tool", text), re.search(r"by the (\w+) program", text)
        if "Title:" in text and name and packer:
            quote = f"The archives of the {name[1]} tool are compressed by the {packer[1]} program"
            asked = f"Which program compresses the archives of {name[1]}?"
            return stage.said(f"Question: {asked}\nAnswer: {packer[1]}\nEvidence: {quote}")
        return stage.said(packer[1] if packer else "unknown")

    stage.play = play


def test_documents_by_rules(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    said = run("make", folder(tmp_path), "--out", out, "--name", "mine")
    made = questions.load(out)
    assert {question.golden_answers[0] for question in made} >= {"--fast0", "--fast1", "--fast2", "--fast3"}
    assert all(question.data_source == "mine" and question.answerable for question in made)
    assert "--teacher" in said
    assert made[0].question in said
    row = next(questions.read_rows(out))
    assert row.extra["evidence"][0]["id"] == row.question.supporting_ids[0]


def test_a_manual_that_begins_like_an_encyclopedia(tmp_path: Path) -> None:
    """Pages that begin with "NAME is a ..." have few of an encyclopedia's facts: the rules for documents find more."""
    for number, name in enumerate(("Billing gateway", "Invoice mailer", "Ledger sync", "Fraud scorer")):
        text = f"{name} is a service.\n\nThe maximum payload size is {64 * (number + 1)} KiB.\n"
        (tmp_path / f"{number}.md").write_text(f"# {name}\n\n{text}")
    out = tmp_path / "made.jsonl"
    run("make", tmp_path, "--out", out)
    assert {question.golden_answers[0] for question in questions.load(out)} == {f"{64 * n} KiB" for n in range(1, 5)}
    error = refused("make", tmp_path, "--out", tmp_path / "other.jsonl", "--rules", "encyclopedia")
    assert "--rules documents" in str(error)


def test_teacher_at_an_address(tmp_path: Path, stage: Any) -> None:
    teach(stage)
    out = tmp_path / "made.jsonl"
    said = run("make", folder(tmp_path), "--out", out, "--teacher", stage.url, "--model", "wise")
    made = questions.load(out)
    assert sorted(question.golden_answers[0] for question in made) == ["bzip2", "gzip", "lzma", "zstd"]
    assert "| proposed | 8 |" in said  # four by the teacher, four by rules
    assert json.loads((tmp_path / "made.report.json").read_bytes())["counts"]["accepted"] == 4
    assert "already exists" in str(refused("make", tmp_path / "docs", "--out", out, "--teacher", stage.url))


def test_teacher_with_an_index_records_the_rank(tmp_path: Path, stage: Any) -> None:
    teach(stage)
    docs = folder(tmp_path)
    built = CliRunner().invoke(app, ["index", "build", str(docs), "--out", str(tmp_path / "index")])
    assert built.exit_code == 0, built.output
    out = tmp_path / "made.jsonl"
    given = ("--teacher", stage.url, "--model", "wise", "--found-within", 1)
    run("make", tmp_path / "index", "--out", out, *given)
    assert [row.extra["search_rank"] for row in questions.read_rows(out)] == [1] * 4
    assert "needs an index" in str(refused("make", docs, "--out", tmp_path / "b.jsonl", *given))


def test_failed_calls_are_left_for_the_next_start(tmp_path: Path, stage: Any) -> None:
    stage.play = lambda _: stage.scene({"error": "no"}, 403)
    docs, out = folder(tmp_path), tmp_path / "made.jsonl"
    arguments = ("make", docs, "--out", out, "--teacher", stage.url, "--model", "wise")
    assert "run the same command again" in str(refused(*arguments))
    assert not out.exists()
    teach(stage)
    run(*arguments)
    assert len(questions.load(out)) == 4


def test_unanswerable_questions_and_splits(tmp_path: Path) -> None:
    docs, out, rest = folder(tmp_path), tmp_path / "made.jsonl", tmp_path / "rest.jsonl"
    run("make", docs, "--out", out, "--unanswerable", 0.3, "--corpus-out", rest, "--per-passage", 1)
    marked = [question for question in questions.load(out) if question.answerable is False]
    assert marked
    remaining = {passage.extra["source"] for passage in passages.stream(rest)}
    assert all(question.supporting_ids[0].partition("#")[0] not in remaining for question in marked)
    said = run("split", out, "--corpus", docs, "--out", tmp_path / "parts", "--parts", "train=0.5,test=0.5")
    parts = [questions.load(tmp_path / "parts" / f"{name}.jsonl") for name in ("train", "test")]
    ids = [{question.supporting_ids[0] for question in part} for part in parts]
    assert not ids[0] & ids[1]
    assert "train.jsonl" in said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--prompts", "x.toml"), "--prompts has no effect"),
        (("--set", "engine.slots=3"), "--set has no effect"),
        (("--teacher", "http://127.0.0.1:1/v1", "--rules", "documents"), "--rules documents"),
        (("--unanswerable", 0.2), "--corpus-out"),
        (("--teacher", "http://127.0.0.1:1/v1", "--model", "m", "--set", "engine.slots=3"), "--set engine.slots=3"),
        (("--teacher", "nowhere"), "nowhere"),
        (("--hops-share", 0.5), "--hops-share"),
    ],
)
def test_options_without_effect(tmp_path: Path, options: tuple[object, ...], complaint: str) -> None:
    error = refused("make", folder(tmp_path), "--out", tmp_path / "made.jsonl", *options)
    assert isinstance(error, ConfigError | InputError)
    assert complaint in str(error)
    assert not (tmp_path / "made.jsonl").exists()


def test_bad_parts(tmp_path: Path) -> None:
    docs = folder(tmp_path)
    run("make", docs, "--out", tmp_path / "made.jsonl")
    for parts in ("train=x", "train=0.4,test=0.4"):
        error = refused("split", tmp_path / "made.jsonl", "--corpus", docs, "--out", tmp_path / "p", "--parts", parts)
        assert "parts" in str(error) or "fractions" in str(error)


def test_decisions_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    rows = [
        {"id": f"q{n}", "question": f"Q{n}?", "golden_answers": ["a"], "data_source": "s", "more": n} for n in range(4)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    decisions: list[dict[str, object]] = [
        {"id": "q0", "action": "keep"},
        {"id": "q1", "action": "drop"},
        {"id": "q2", "action": "edit", "question": "Better?", "golden_answers": ["b", " "]},
        {"id": "q3", "action": "drop"},
        {"id": "q3", "action": "undo"},
    ]
    (tmp_path / "q.review.jsonl").write_text("".join(json.dumps(each) + "\n" for each in decisions))
    said = run("review", file, "--apply", tmp_path / "out.jsonl")
    kept = list(questions.read_rows(tmp_path / "out.jsonl"))
    assert [(row.question.id, row.question.question, row.extra["more"]) for row in kept] == [
        ("q0", "Q0?", 0),
        ("q2", "Better?", 2),
        ("q3", "Q3?", 3),
    ]
    assert kept[1].question.golden_answers == ("b",)
    assert "1 dropped" in said
    assert "already exists" in str(refused("review", file, "--apply", tmp_path / "out.jsonl"))
    (tmp_path / "q.review.jsonl").write_text('{"id": "q0", "action": "burn"}\n')
    assert "line 1" in str(refused("review", file, "--apply", tmp_path / "new.jsonl"))
