"""The commands evaluate and coldstart: what they refuse before any work."""

from pathlib import Path

import pytest

from sleuth.cli.coldstart import coldstart
from sleuth.cli.evaluate import evaluate
from sleuth.errors import InputError
from sleuth.runs import Run


def test_result_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    (tmp_path / "result.json").write_text("precious")
    with pytest.raises(InputError, match=r"result\.json exists already and is left as it is"):
        evaluate(run.path, out=tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == "precious"


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        evaluate(tmp_path)


def test_cold_start_leaves_an_existing_folder_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exists already and is left as it is"):
        coldstart(out=tmp_path)
    assert list(tmp_path.iterdir()) == []
