"""Stages run as real commands: outputs are kept, options are fixed, failures name the stage."""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from sleuth.errors import InputError
from sleuth.pipeline.runner import SECONDS
from sleuth.runs.lock import locked
from sleuth.start.runner import LAYOUT, OPTIONS, make_pipeline, start
from sleuth.start.sizes import choose_sizes
from sleuth.start.stages import StartOptions

SIZES = choose_sizes("quickstart", steps=1)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# Town {number}\n\nTown {number} lies at the river.\n")
    return folder


@pytest.fixture
def begin(tmp_path: Path, documents: Path) -> Callable[..., list[str]]:
    """Starts in the folder `agent` and returns what was logged."""

    def run(**changes: object) -> list[str]:
        lines: list[str] = []
        options = StartOptions(str(documents), "quickstart", **changes)  # type: ignore[arg-type]
        try:
            start(options, tmp_path / "agent", SIZES, lines.append)
        except InputError as error:
            lines.append(str(error))
        return lines

    return run


@pytest.mark.e2e
def test_a_failing_stage_is_named_and_finished_ones_are_kept(begin: Callable[..., list[str]], tmp_path: Path) -> None:
    """Three sentences are too little for questions: the second stage fails, or the split has too few."""
    first = begin()
    assert first[0].startswith("[1/20] documents: read")
    assert "same command again" in first[-1] or "--teacher" in first[-1]
    built = (tmp_path / "agent" / "documents" / "manifest.json").stat().st_mtime_ns
    again = begin()
    assert again[0] == "[1/20] documents: done"
    assert (tmp_path / "agent" / "documents" / "manifest.json").stat().st_mtime_ns == built
    assert "documents" in json.loads((tmp_path / "agent" / SECONDS).read_text())


@pytest.mark.e2e
def test_a_teacher_that_fails_often_gives_the_same_questions(tmp_path: Path, documents: Path, stage: Any) -> None:
    """30% of the calls end in an error, a closed connection or a late reply: it takes longer, and that is all."""
    for number in range(12):
        text = (
            f"The archives of the Tool{number} program are packed by Zorb{number} in every release. Whoever needs one "
            "asks at the counter, where the archives are kept for a while before they are sent to the depot."
        )
        (documents / f"tool{number}.md").write_text(f"# Tool{number}\n\n{text}\n")
    failures: Counter[str] = Counter()
    kinds, lock = cycle(["error", "closed", "late"]), Lock()

    def reply(body: dict[str, Any]) -> Any:
        text = str(body["messages"][-1]["content"])
        found = re.search(r"Tool(\d+) program are packed by (Zorb\d+)", text)
        if found is None:
            return stage.said("unknown")
        asked = f"Who packs the archives of the Tool{found[1]} program?"
        quote = f"The archives of the {found[0]} in every release."
        proposed = f"Question: {asked}\nAnswer: {found[2]}\nEvidence: {quote}"
        return stage.said(proposed if "Title:" in text else found[2])

    def shaky(body: dict[str, Any]) -> Any:
        with lock:
            kind = next(kinds) if failures.total() % 10 in (1, 4, 7) else ""  # 30% of the calls
            failures[kind] += 1
        if kind == "late":
            time.sleep(0.3)
        failing = {"error": stage.scene({"error": "busy"}, 500), "closed": stage.scene(None, 0)}
        return failing.get(kind) or reply(body)

    options = StartOptions(str(documents), "quickstart", teacher=stage.url, teacher_model="wise")
    stage.play = reply
    start(options, tmp_path / "calm", SIZES, lambda _: None, until="questions")
    (tmp_path / "shaky").mkdir()
    shutil.copy(tmp_path / "calm" / OPTIONS, tmp_path / "shaky")
    shutil.copytree(tmp_path / "calm" / "documents", tmp_path / "shaky" / "documents")  # made without the teacher
    calls, stage.play = len(stage.heard), shaky
    start(options, tmp_path / "shaky", SIZES, lambda _: None, until="questions")
    made = (tmp_path / "shaky" / "questions.jsonl").read_bytes()
    assert made.count(b"\n") >= 10
    assert made == (tmp_path / "calm" / "questions.jsonl").read_bytes()
    assert (tmp_path / "shaky" / "corpus.jsonl").read_bytes() == (tmp_path / "calm" / "corpus.jsonl").read_bytes()
    assert all(failures[kind] for kind in ("error", "closed", "late"))
    assert len(stage.heard) - calls == calls + failures["error"] + failures["closed"]
    assert not (tmp_path / "shaky" / "index").exists()


def test_a_missing_output_with_others_made_from_it_is_refused(begin: Callable[..., list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    options = StartOptions(str(tmp_path / "docs"), "quickstart")
    (folder / OPTIONS).write_text(json.dumps({"layout": LAYOUT, **options.as_json()}))
    for name in ("documents", "questions.jsonl", "index", "parts", "recipe.toml", "plan.json"):
        (folder / name).touch()
    (line,) = begin()
    assert f"{folder / 'corpus.jsonl'} is missing" in line
    assert all(str(folder / name) in line for name in ("index", "parts", "recipe.toml", "plan.json"))
    assert str(folder / "documents") not in line


@pytest.mark.parametrize(
    ("out", "complaint"),
    [("docs/agent", "lies in the folder of documents"), ("taken", "notes.txt"), ("taken/notes.txt", "is a file")],
)
def test_output_folders_that_are_refused(tmp_path: Path, documents: Path, out: str, complaint: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=complaint):
        start(StartOptions(str(documents), "quickstart"), tmp_path / out, SIZES, lambda _: None)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes.txt"]
    assert not (documents / "agent").exists()


def test_other_options_are_refused(begin: Callable[..., list[str]], tmp_path: Path, documents: Path) -> None:
    (tmp_path / "agent").mkdir()
    options = StartOptions(str(documents), "quickstart", seed=1)
    (tmp_path / "agent" / OPTIONS).write_text(json.dumps({"layout": LAYOUT, **options.as_json()}))
    (line,) = begin(seed=2)
    assert "seed = 1, not 2" in line


def test_folders_of_another_version_are_refused(
    begin: Callable[..., list[str]], tmp_path: Path, documents: Path
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / OPTIONS).write_text(json.dumps(StartOptions(str(documents), "quickstart").as_json()))
    (line,) = begin()
    assert "another version" in line
    assert "--out" in line


def test_one_process_at_a_time(begin: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    with locked(tmp_path / "agent" / "lock", "busy"):
        (line,) = begin()
    assert "another process" in line


def test_the_plan_has_a_command_for_each_stage(tmp_path: Path) -> None:
    lines = make_pipeline(StartOptions("docs", "quickstart"), tmp_path, SIZES).describe()
    assert len(lines) == 40
    assert lines[1].strip().startswith("sleuth index build docs")
    spaced = make_pipeline(StartOptions("my docs", "quickstart"), tmp_path, SIZES).describe()
    assert "sleuth index build 'my docs' --out" in spaced[1]
