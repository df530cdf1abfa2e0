"""What the page is written with: nothing that turns text into markup or code, and nothing from anywhere else."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

STATIC = Path(str(files("sleuth.view"))) / "static"
WRITTEN = sorted(path for path in STATIC.rglob("*") if path.suffix in {".html", ".css", ".js", ".svg"})
# Ways in which a string becomes markup, or code.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|createContextualFragment|DOMParser|srcdoc|document\.write"
    r"|\beval\b|new Function|setTimeout\(\s*[\"'`]|javascript:"
)
ELSEWHERE = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_no_way_from_text_to_markup_and_none_out(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")
    assert SINKS.search(text) is None
    assert ELSEWHERE.search(text) is None


@pytest.mark.parametrize(
    "written", ["node.innerHTML = text", "eval(text)", "setTimeout('go()', 1)", "import '//cdn.example/x.js'"]
)
def test_the_law_catches_such_ways(written: str) -> None:
    assert SINKS.search(written) or ELSEWHERE.search(written)


def test_every_module_is_used() -> None:
    imported = re.compile(r"from \"(\.{1,2}/[^\"]+)\"")
    used = {
        (path.parent / name).resolve()
        for path in WRITTEN
        for name in imported.findall(path.read_text(encoding="utf-8"))
    }
    modules = {path.resolve() for path in WRITTEN if path.suffix == ".js"}
    assert modules - used == {(STATIC / name).resolve() for name in ("main.js", "review.js")}
    assert used <= modules
