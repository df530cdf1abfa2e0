"""Stages run as real commands: outputs are kept, options are fixed, failures name the stage."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.lock import locked
from sleuth.start.runner import OPTIONS, SECONDS, describe_stages, start
from sleuth.start.sizes import choose_sizes
from sleuth.start.stages import StartOptions, plan_stages

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
    assert first[0].startswith("[1/17] documents: read")
    assert "same command again" in first[-1] or "--teacher" in first[-1]
    built = (tmp_path / "agent" / "documents" / "manifest.json").stat().st_mtime_ns
    again = begin()
    assert again[0] == "[1/17] documents: done"
    assert (tmp_path / "agent" / "documents" / "manifest.json").stat().st_mtime_ns == built
    assert "documents" in json.loads((tmp_path / "agent" / SECONDS).read_text())


def test_other_options_are_refused(begin: Callable[..., list[str]], tmp_path: Path, documents: Path) -> None:
    (tmp_path / "agent").mkdir()
    options = StartOptions(str(documents), "quickstart", seed=1)
    (tmp_path / "agent" / OPTIONS).write_text(json.dumps(options.as_json()))
    (line,) = begin(seed=2)
    assert "seed = 1, not 2" in line


def test_one_process_at_a_time(begin: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    with locked(tmp_path / "agent" / "lock", "busy"):
        (line,) = begin()
    assert "another process" in line


def test_the_plan_has_a_command_for_each_stage(tmp_path: Path) -> None:
    lines = describe_stages(plan_stages(StartOptions("docs", "quickstart"), tmp_path, SIZES))
    assert len(lines) == 34
    assert lines[1].strip().startswith("sleuth index build docs")
