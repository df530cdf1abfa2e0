"""A pipeline of real commands: finished stages are skipped, changed options are refused, output goes to stderr."""

from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.pipeline.runner import Pipeline, find_stage
from sleuth.pipeline.stage import Stage


def make(folder: Path, *stages: Stage, options: dict[str, object] | None = None) -> Pipeline:
    def note() -> None:
        (folder / "note").touch()

    return Pipeline("sleuth x", folder, "x.json", 1, options or {}, lambda: stages, {"note": note})


def run(pipeline: Pipeline, until: str | None = None) -> list[str]:
    lines: list[str] = []
    pipeline.run(lines.append, until)
    return lines


def test_an_action_runs_once_and_options_may_be_tuples(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    stage = Stage("note", "write a note", (folder / "note",))
    assert run(make(folder, stage, options={"words": ("a", "b")})) == ["[1/1] note: write a note"]
    assert run(make(folder, stage, options={"words": ("a", "b")})) == ["[1/1] note: done"]
    with pytest.raises(InputError, match="words"):
        run(make(folder, stage, options={"words": ("a", "c")}))


def test_a_stage_that_is_replaced_is_done(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    download = Stage("download", "", (folder / "zip",), ("nope",), replaced_by=folder / "note")
    note = Stage("note", "write a note", (folder / "note",), reads=(folder / "zip",))
    assert not download.is_done
    folder.mkdir()
    (folder / "note").touch()
    (folder / "x.json").write_text('{"layout": 1}')
    assert run(make(folder, download, note)) == ["[1/2] download: done", "[2/2] note: done"]


def test_what_a_stage_prints_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    version = Stage("version", "print the version", (folder / "missing",), ("--version",))
    with pytest.raises(Exception, match="'version' failed with exit code 0"):
        run(make(folder, version))
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("sleuth ")


def test_the_number_of_a_stage_and_unknown_names(tmp_path: Path) -> None:
    stages = [Stage("a", "", (tmp_path / "a",)), Stage("b", "", (tmp_path / "b",))]
    assert find_stage(stages, "b") == 2
    with pytest.raises(InputError, match="'c' is not a stage; expected one of: a, b"):
        find_stage(stages, "c")
