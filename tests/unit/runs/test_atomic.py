"""Atomic writes: no partial files under final names, and no overwritten work of other processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sleuth.errors import InputError
from sleuth.runs.atomic import atomic_write
from sleuth.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs" / "first", {"config": {"name": "first"}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "step-1"
    for content in ("old", "new"):
        with atomic_write(target) as folder:
            folder.mkdir()
            (folder / content).write_text(content)
    assert names(target) == ["new"]
    assert names(target.parent) == ["step-1"]


def fail_while_writing(path: Path, error: Exception) -> None:
    with atomic_write(path) as folder:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise error


def test_full_disk_is_a_one_line_error_and_loses_nothing(run: Run) -> None:
    run.checkpoint(1).mkdir()
    with pytest.raises(InputError) as caught:
        fail_while_writing(run.checkpoint(2), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    expected = f"{run.checkpoint(2)} cannot be written: the disk is full; free some space and try again"
    assert str(caught.value) == expected
    assert names(run.path / "checkpoints") == ["step-1"]


@pytest.mark.parametrize(("fault", "sentence"), [(errno.ENOSPC, "the disk is full"), (errno.EFBIG, "file size limit")])
def test_failed_write_is_recognised_by_its_message(tmp_path: Path, fault: int, sentence: str) -> None:
    """Libraries raise their own error types."""
    words = f"I/O error: {os.strerror(fault)} (os error {fault})"
    with pytest.raises(InputError, match=sentence):
        fail_while_writing(tmp_path / "model", ValueError(words))


def test_full_disk_is_recognised_without_error_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy raises an OSError without a number, torch a RuntimeError."""
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    for error in (OSError("45556 requested and 45024 written"), RuntimeError("enforce fail")):
        with pytest.raises(type(error)):
            fail_while_writing(tmp_path / "model", error)
        with monkeypatch.context() as disk:
            disk.setattr(shutil, "disk_usage", lambda _: full)
            with pytest.raises(InputError, match="the disk is full"):
                fail_while_writing(tmp_path / "model", error)


def test_failed_write_of_torch_is_a_one_line_error(tmp_path: Path) -> None:
    """Also if space is left, as with a quota: /dev/full fails every write."""
    with pytest.raises(RuntimeError) as failed:
        torch.save({"weight": torch.zeros(1 << 20)}, "/dev/full")
    with pytest.raises(InputError, match=r"model cannot be written: a write failed, with [0-9.]+ GB free"):
        fail_while_writing(tmp_path / "model", failed.value)
    assert names(tmp_path) == []


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        fail_while_writing(tmp_path / "folder", ValueError("mine"))
    assert names(tmp_path) == []


def test_killed_writer_leaves_no_final_file(run: Run) -> None:
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
    """Start a process that stops or dies before it renames its output."""
    command = [sys.executable, "-c", WRITING, str(path), words, ending]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_only_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
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
    _, errors = stopped.communicate(timeout=30)
    assert f"InputError: another process wrote {path} meanwhile" in errors
    assert (path / "mine").read_text() == "second"
    assert names(tmp_path) == ["folder"]


def write_twice(path: Path) -> None:
    with atomic_write(path) as outer:
        outer.write_text("second")
        with atomic_write(path) as inner:
            inner.write_text("first")
        assert path.read_text() == "first"


def test_file_written_meanwhile_by_another_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match="another process wrote"):
        write_twice(path)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["rows.jsonl"]


def test_existing_file_is_replaced_by_the_last_writer(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text("old")
    write_twice(path)
    assert path.read_text() == "second"
    assert names(tmp_path) == ["best.json"]


def test_temporaries_of_other_hosts_are_removed_only_under_the_lock(run: Run) -> None:
    foreign = run.path / ".00000000-999999999-abcdef.tmp-best.json"
    foreign.write_text("half")
    run.record_score(1, 0.5)
    assert foreign.exists()
    with run.lock():
        assert not foreign.exists()
