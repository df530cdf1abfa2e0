"""Meaningless names are banned, packages have docstrings, and no file contains paths of its author's machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sleuth"
# Not "data": a command and a section of the settings have that name.
BANNED = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "info", "manager", "handler"})
EMPTY_WORDS = ("Manager", "Handler", "Helper", "Utils", "Info")
HOME = re.compile(r"/(?:home|Users)/\w|/(?:root)/")
BINARY = frozenset({".safetensors", ".png", ".npy", ".pyc", ".zip"})


def written_files() -> Iterator[Path]:
    """Every text file of the project that people write."""
    inner = (path for name in ("src", "tests", "docs", ".ci") for path in (ROOT / name).rglob("*"))
    for path in (*ROOT.iterdir(), *inner):
        if path.is_file() and path.suffix not in BINARY:
            yield path


def empty_names(path: Path, source: str) -> list[str]:
    """Parts of the path, and classes of the file, whose names say nothing."""
    words = [word for part in path.with_suffix("").parts for word in part.split("_") if word in BANNED]
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return words + [name for name in classes if name.endswith(EMPTY_WORDS)]


def test_no_name_is_empty() -> None:
    found = {
        str(path): names
        for path in PACKAGE.rglob("*.py")
        if (names := empty_names(path.relative_to(PACKAGE), path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("path", "source", "name"),
    [
        ("agent/utils.py", "", "utils"),
        ("misc/ledger.py", "", "misc"),
        ("agent/text_helpers.py", "", "helpers"),
        ("agent/tools.py", "class ToolManager: ...", "ToolManager"),
    ],
)
def test_law_catches_empty_names(path: str, source: str, name: str) -> None:
    assert empty_names(Path(path), source) == [name]


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_package_holds_one_line_of_docstring_and_no_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring, f"{path} says nothing about its package"
    assert "\n" not in docstring
    assert path.parent == PACKAGE or len(tree.body) == 1, f"{path} re-exports; import from where a thing is defined"


def test_every_module_says_what_it_holds() -> None:
    assert [str(path) for path in PACKAGE.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_file_holds_a_home_folder() -> None:
    assert [str(path) for path in written_files() if HOME.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("parts", [("", "home", "ada"), ("", "Users", "ada"), ("", "root", "models")])
def test_law_catches_home_folders(parts: tuple[str, ...]) -> None:
    assert HOME.search("/".join(parts))
