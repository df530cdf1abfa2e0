"""A test whose requirement is not met is deselected and counted, never reported as skipped or passed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MODULE = "import pytest\n\ndef test_plain():\n    pass\n\n@pytest.mark.shared\ndef test_needy():\n    pass\n"


@pytest.mark.parametrize(
    ("met", "summary", "absent"),
    [(True, "2 passed", "not run here"), (False, "not run here: 1 shared", "2 passed")],
)
def test_need_decides(tmp_path: Path, met: bool, summary: str, absent: str) -> None:
    tests = tmp_path / "project" / "tests"
    tests.mkdir(parents=True)
    shutil.copy(CONFTEST, tests)
    (tests / "test_module.py").write_text(MODULE)
    (tests.parent / "pytest.ini").write_text("[pytest]\nmarkers = shared: needs it\n")
    if met:
        (tmp_path / "shared").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tests)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=tests.parent)
    assert summary in ended.stdout
    assert absent not in ended.stdout
