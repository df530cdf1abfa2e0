"""File locks exclude other holders and are released when the holder ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.lock import locked

HOLDER = """
import sys
from pathlib import Path
from sleuth.runs.lock import locked
with locked(Path(sys.argv[1]), "busy"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with (
            pytest.raises(InputError, match="another process is here"),
            locked(tmp_path / "lock", "another process is here"),
        ):
            pass
        holder.kill()
    with locked(tmp_path / "lock", "busy"):
        assert (tmp_path / "lock").is_file()


def test_lock_in_a_missing_folder_is_a_one_line_error(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"missing cannot be written \(No such file"),
        locked(tmp_path / "missing" / "lock", "busy"),
    ):
        pass
