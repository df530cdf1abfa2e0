"""Runs commands in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.cli.main import main

Ended = tuple[int | str | None, str, str]
Run = Callable[..., Ended]


@pytest.fixture
def sleuth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a folder of its own: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["sleuth", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code, printed.out, printed.err

    return run
