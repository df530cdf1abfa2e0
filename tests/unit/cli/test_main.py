"""The command line: what it prints, and how it leaves."""

import subprocess
import sys

import pytest

from sleuth import __version__
from sleuth.cli.main import COMMANDS, GROUPS, OUT_OF_MEMORY_HINT, main

FAILING = """
import sys
import sleuth.cli.main as cli
from sleuth.errors import InputError, TrainingStopped

@cli.app.command()
def fail() -> None:
    raise {error}

sys.argv = ["sleuth", "fail"]
cli.main()
"""


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """The exit code of `sleuth` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["sleuth", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"sleuth {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "model", "--temperature", "inf"),
        ("ask", "run", "who", "--temperature", "inf"),
        ("traces", "sample", "run", "--questions", "q", "--out", "o", "--temperature", "inf"),
        ("traces", "sample", "run", "--questions", "q", "--out", "o", "--min-reward", "nan"),
        ("ask", "http://host/v1", "who", "--timeout", "inf"),
    ],
)
def test_infinite_numbers_are_rejected(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, *words) == 2
    assert capsys.readouterr().err == f"sleuth: {words[-2]} is {words[-1]}: expected a finite number\n"


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    assert [
        name for name in (*GROUPS, *(command.__name__.rstrip("_") for command in COMMANDS)) if name not in shown
    ] == []


def test_every_command_has_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*GROUPS, *(command.__name__.rstrip("_") for command in COMMANDS)):
        assert leave(monkeypatch, name, "--help") == 0
        assert f"sleuth {name}" in capsys.readouterr().out


def test_unknown_command_exits_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "trian") == 2
    assert "trian" in capsys.readouterr().err


def test_settings_are_listed_one_per_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "settings") == 0
    words = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["train.steps", "int", "100"] in words
    assert ["data.corpus", "str", "-"] in words
    assert leave(monkeypatch, "settings", "algorithm.kl") == 0
    group = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in group] == [
        f"algorithm.kl.{name}" for name in ("place", "estimator", "coefficient", "target", "horizon")
    ]


def test_an_unknown_settings_group_suggests_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "settings", "trian") == 2
    message = capsys.readouterr().err
    assert "'trian'" in message
    assert "'train'" in message


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        ("InputError('no such file;\\n give another')", 2, "sleuth: no such file;  give another\n"),
        ("TrainingStopped('too many failed searches')", 1, "sleuth: too many failed searches\n"),
        ("KeyboardInterrupt", 130, ""),
        (
            "__import__('torch').OutOfMemoryError('CUDA out of memory.')",
            2,
            f"sleuth: the GPU is out of memory; {OUT_OF_MEMORY_HINT}\n",
        ),
        ("MemoryError('std::bad_alloc')", 2, f"sleuth: the machine is out of memory; {OUT_OF_MEMORY_HINT}\n"),
    ],
)
def test_failure_is_one_line(error: str, code: int, shown: str) -> None:
    command = [sys.executable, "-c", FAILING.format(error=error)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, shown)


def test_an_internal_error_keeps_its_traceback() -> None:
    command = [sys.executable, "-c", FAILING.format(error="KeyError('lost')")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
