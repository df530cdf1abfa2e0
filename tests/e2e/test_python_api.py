"""The examples of docs/python.md run as one script, and the notebook runs in a kernel."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.e2e
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "python.md").read_text())
    assert len(blocks) == 8
    (tmp_path / "page.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "page.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("Answer: Kellan Whitlock (1 search)") == 2


@pytest.mark.e2e
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    results = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in results)
    assert "Answer: Kellan Whitlock (1 search)" in shown
    assert "Evaluation(2 questions, 0 unusable" in shown
    errors = [output.text for output in results if output.get("name") == "stderr"]
    assert [text for text in errors if "TqdmWarning" not in text] == []  # tqdm asks for ipywidgets
