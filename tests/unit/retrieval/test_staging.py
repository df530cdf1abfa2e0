"""Staging folders: resumption, exclusive access, and cleanup."""

import errno
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.retrieval.staging import LOCK, SPEC, source_fingerprint, staged_folder


def interrupted(out: Path, order: dict[str, int]) -> None:
    """A build that ends after its first block."""
    try:
        with staged_folder(out, order) as folder:
            (folder / "block").write_text("done")
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert not out.exists()


def test_folder_appears_complete_without_temporary_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "index"
    with staged_folder(out, {"k": 1}) as folder:
        (folder / "array").write_text("x")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["array"]
    assert [path.name for path in out.parent.iterdir()] == ["index"]


def test_interrupted_build_is_continued(tmp_path: Path) -> None:
    interrupted(tmp_path / "index", {"k": 1})
    with staged_folder(tmp_path / "index", {"k": 1}) as folder:
        assert (folder / "block").read_text() == "done"
    assert (tmp_path / "index" / "block").exists()


def test_build_with_another_spec_is_left_alone(tmp_path: Path) -> None:
    interrupted(tmp_path / "index", {"k": 1})
    with pytest.raises(InputError, match="unfinished build"), staged_folder(tmp_path / "index", {"k": 2}):
        pytest.fail("it was begun")
    with staged_folder(tmp_path / "index", {"k": 1}) as folder:
        assert (folder / "block").exists()


@pytest.mark.parametrize("cause", [None, gzip.BadGzipFile("not a gzipped file"), PermissionError(errno.EACCES, "no")])
def test_build_whose_input_is_wrong_leaves_nothing(cause: Exception | None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3"), staged_folder(tmp_path / "deep" / "deeper" / "index", {}):
        raise InputError("line 3 is bad") from cause
    assert list(tmp_path.iterdir()) == []


def test_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="line 3"), staged_folder(tmp_path / "there" / "deeper" / "index", {}):
        raise InputError("line 3 is bad")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_unwritable_location_is_an_input_error() -> None:
    with pytest.raises(InputError, match="No such file"), staged_folder(Path("/proc/index"), {}):
        pytest.fail("it was begun")


def test_staging_folder_without_spec_is_cleared(tmp_path: Path) -> None:
    interrupted(tmp_path / "index", {"k": 1})
    (tmp_path / ".building-index" / SPEC).unlink()
    with staged_folder(tmp_path / "index", {"k": 2}) as folder:
        assert [path.name for path in folder.iterdir() if path.name not in (SPEC, LOCK)] == []


def test_build_is_kept_when_the_disk_is_full(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the disk is full"), staged_folder(tmp_path / "index", {}):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == [".building-index"]


def test_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(InputError, match="already exists"), staged_folder(tmp_path / "index", {}):
        pytest.fail("it was begun")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_concurrent_builds_are_excluded(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\nfrom sleuth.retrieval.staging import staged_folder\n"
        "with staged_folder(pathlib.Path(sys.argv[1]), {}):\n    print('in', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "index")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(InputError, match="another process"), staged_folder(tmp_path / "index", {}):
            pytest.fail("it was begun")
        other.communicate("")
    assert (tmp_path / "index").is_dir()


@pytest.mark.parametrize("source", [".", "*.txt", "part_a"])
def test_source_is_known_by_names_sizes_and_times(source: str, tmp_path: Path) -> None:
    for name in ("a.txt", "part_a"):
        (tmp_path / name).write_text("one")
    first = source_fingerprint(tmp_path / source)
    (tmp_path / ".building-index").mkdir()
    (tmp_path / ".building-index" / "c.txt").write_text("not of the source")
    assert source_fingerprint(tmp_path / source) == first
    for name in ("b.txt", "part_b"):
        (tmp_path / name).write_text("two")
    second = source_fingerprint(tmp_path / source)
    assert second != first
    for name in ("b.txt", "part_b"):
        os.utime(tmp_path / name, ns=(0, 0))
    assert source_fingerprint(tmp_path / source) not in (first, second)


def test_source_that_is_not_there_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.jsonl does not exist"):
        source_fingerprint(tmp_path / "nothing.jsonl")
