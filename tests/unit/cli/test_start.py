"""The command start: bad input, and the plan."""

from pathlib import Path

import pytest

from sleuth.cli.start import start
from sleuth.errors import InputError


def test_documents_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        start(tmp_path / "missing", "quickstart")


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    start(tmp_path / "docs", "quickstart", out=tmp_path / "agent", dry_run=True)
    printed = capsys.readouterr().err
    assert "sleuth data make" in printed
    assert str(tmp_path / "agent" / "run") in printed
    assert not (tmp_path / "agent").exists()
