"""Atomic writes: no partial files under final names, and no overwritten work of other processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs" / "first", {"config": {"name": "first"}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replacing_swaps_a_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "step-1"
    for content in ("old", "new"):
        with atomic_write(target) as folder:
            folder.mkdir()
            (folder / content).write_text(content)
    assert names(target) == ["new"]
    assert names(target.parent) == ["step-1"]


def fail_while_replacing(path: Path, error: Exception) -> None:
    with atomic_write(path) as folder:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise error


def test_full_disk_is_one_sentence_and_loses_nothing(run: Run) -> None:
    run.checkpoint(1).mkdir()
    with pytest.raises(InputError) as caught:
        fail_while_replacing(run.checkpoint(2), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    expected = f"{run.checkpoint(2)} cannot be written: the disk is full; free some space and try again"
    assert str(caught.value) == expected
    assert names(run.path / "checkpoints") == ["step-1"]


@pytest.mark.parametrize(("fault", "sentence"), [(errno.ENOSPC, "the disk is full"), (errno.EFBIG, "file size limit")])
def test_failed_write_is_known_by_its_words_too(tmp_path: Path, fault: int, sentence: str) -> None:
    """Libraries that write for us raise errors of their own."""
    words = f"I/O error: {os.strerror(fault)} (os error {fault})"
    with pytest.raises(InputError, match=sentence):
        fail_while_replacing(tmp_path / "model", ValueError(words))


def test_full_disk_is_known_where_nobody_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy raises an OSError without a number, torch a RuntimeError."""
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    for error in (OSError("45556 requested and 45024 written"), RuntimeError("enforce fail")):
        with pytest.raises(type(error)):
            fail_while_replacing(tmp_path / "model", error)
        with monkeypatch.context() as disk:
            disk.setattr(shutil, "disk_usage", lambda _: full)
            with pytest.raises(InputError, match="the disk is full"):
                fail_while_replacing(tmp_path / "model", error)


def test_other_errors_pass_through_replacing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        fail_while_replacing(tmp_path / "folder", ValueError("mine"))
    assert names(tmp_path) == []


def test_killed_writer_leaves_nothing_under_the_final_name(run: Run) -> None:
    script = (
        "import os, signal, sys, pathlib, sleuth.runs.atomic as r\n"
        "with r.atomic_write(pathlib.Path(sys.argv[1])) as folder:\n"
        "    folder.mkdir(); (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(run.checkpoint(1))], check=False, timeout=30)
    [left] = names(run.path / "checkpoints")
    assert left.endswith(".tmp-step-1")
    with run.lock():
        assert run.checkpoints() == []
    assert names(run.path / "checkpoints") == []


WRITING = """
import os, pathlib, signal, sys
from sleuth.runs.atomic import atomic_write
with atomic_write(pathlib.Path(sys.argv[1])) as folder:
    folder.mkdir()
    (folder / "mine").write_text(sys.argv[2])
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))
"""


def writer(path: Path, words: str, ending: str) -> subprocess.Popen[str]:
    """A process that stops or dies before what it wrote gets its name."""
    command = [sys.executable, "-c", WRITING, str(path), words, ending]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_leftovers_of_the_dead_are_removed_by_the_next_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    writer(path, "dead", "SIGKILL").communicate(timeout=30)
    assert len(names(tmp_path)) == 1
    stopped = writer(path, "first", "SIGSTOP")
    os.waitpid(stopped.pid, os.WUNTRACED)
    assert [f"-{stopped.pid}-" in name for name in names(tmp_path)] == [True]
    with atomic_write(path) as folder:
        folder.mkdir()
        (folder / "mine").write_text("second")
    stopped.send_signal(signal.SIGCONT)
    _, said = stopped.communicate(timeout=30)
    assert f"InputError: another process wrote {path} meanwhile" in said
    assert (path / "mine").read_text() == "second"
    assert names(tmp_path) == ["folder"]


def write_twice(path: Path) -> None:
    with atomic_write(path) as outer:
        outer.write_text("second")
        with atomic_write(path) as inner:
            inner.write_text("first")
        assert path.read_text() == "first"


def test_a_file_that_another_wrote_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match="another process wrote"):
        write_twice(path)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["rows.jsonl"]


def test_a_file_that_was_there_is_replaced_by_whoever_is_last(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text("old")
    write_twice(path)
    assert path.read_text() == "second"
    assert names(tmp_path) == ["best.json"]


def test_temporaries_of_another_machine_are_not_judged_but_by_who_holds_the_folder(run: Run) -> None:
    foreign = run.path / ".00000000-999999999-abcdef.tmp-best.json"
    foreign.write_text("half")
    run.record_score(1, 0.5)
    assert foreign.exists()
    with run.lock():
        assert not foreign.exists()
