"""Reading in a process with limits: answers, failures, and the next file after a failure."""

from pathlib import Path

import pytest

from sleuth.corpus.content import Content
from sleuth.corpus.documents import read_content
from sleuth.corpus.isolation import IsolatedReader


def test_answers_equal_those_of_this_process(tmp_path: Path) -> None:
    files = {
        "a.md": "# Täst\n\nWörds \u2028 of it.\n\n## Two\n\nMore.",
        "b\udcff.html": "<h1>T</h1><p>x</p>",
        "c.txt": "",
    }
    with IsolatedReader() as reader:
        for name, text in files.items():
            path = tmp_path / name
            path.write_text(text)
            assert reader.read(path) == read_content(path)
    assert read_content(tmp_path / "a.md").headings == {0: 1, 2: 2}


def test_reasons_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("broken")
    (tmp_path / "b.txt").write_text("Words.")
    with IsolatedReader() as reader:
        with pytest.raises(ValueError, match="not a readable PDF"):
            reader.read(tmp_path / "a.pdf")
        assert reader.read(tmp_path / "b.txt") == Content("", "Words.")


def test_file_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "slow.md").write_text("[" * 400_000)  # quadratic: more than a minute
    (tmp_path / "b.txt").write_text("Words.")
    with IsolatedReader(cpu_seconds=1) as reader:
        with pytest.raises(ValueError, match="it took longer than 1 s"):
            reader.read(tmp_path / "slow.md")
        assert reader.read(tmp_path / "b.txt").text == "Words."


def test_file_that_needs_too_much_memory_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_text("x" * (100 << 20))
    (tmp_path / "b.txt").write_text("Words.")
    with IsolatedReader(memory=200 << 20) as reader:
        with pytest.raises(ValueError, match="memory"):
            reader.read(tmp_path / "large.txt")
        assert reader.read(tmp_path / "b.txt").text == "Words."
