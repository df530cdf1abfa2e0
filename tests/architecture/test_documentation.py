"""Links and code names in the documentation resolve."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)(?:\s`(?P<symbol>[A-Za-z_][\w.]*)(?:\(\))?`)?")
HOPS = re.compile(r"`([\w./]+)`(?: → `([\w./]+)`)+")
PROGRAM = re.compile(r"\]\(\.\./(examples/[\w./]+)\)[^\n]*:\n\n```\w+\n(.*?)```", re.DOTALL)
MAX_COLUMNS = 120


def links(page: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Text, target file and the code name behind each relative link of a page."""
    for found in LINK.finditer(page.read_text()):
        if "://" not in found["target"] and not found["target"].startswith(("#", "mailto:")):
            yield found["text"], (page.parent / found["target"].split("#")[0]).resolve(), found["symbol"]


def defines(tree: ast.Module, symbol: str) -> bool:
    """Whether a module defines `name`, `Class.method` or `Class.field` (own or inherited within the module)."""
    name, _, member = symbol.partition(".")
    found = [each for each in tree.body if name in names(each)]
    if not found or not member:
        return bool(found)
    return isinstance(found[0], ast.ClassDef) and any(member in names(each) for each in found[0].body)


def names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {each.id for each in targets if isinstance(each, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    assert [str(target.relative_to(ROOT)) for _, target, _ in links(page) if not target.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_names_behind_links_are_defined_there(page: Path) -> None:
    missing = [
        f"{target.relative_to(ROOT)}: {symbol}"
        for _, target, symbol in links(page)
        if symbol is not None and target.suffix == ".py" and not defines(ast.parse(target.read_text()), symbol)
    ]
    assert missing == []


def test_the_tour_names_files_as_they_are() -> None:
    wrong = [
        f"{text} -> {target.relative_to(ROOT)}"
        for text, target, _ in links(ROOT / "docs" / "tour.md")
        if text.startswith("`")
        and target.suffix == ".py"
        and not str(target).endswith(text.strip("`"))
        and text.strip("`") not in {node.name for node in ast.parse(target.read_text()).body if hasattr(node, "name")}
    ]
    assert wrong == []


def test_the_tour_names_its_hops_in_order_of_import() -> None:
    """From the command to the optimiser step, each module of the chain imports the next."""
    chains = [re.findall(r"`([\w./]+)`", found[0]) for found in HOPS.finditer((ROOT / "docs" / "tour.md").read_text())]
    assert chains, "the tour should name the hops from the command to the step"
    for chain in chains:
        for module, following in itertools.pairwise(chain):
            source = (ROOT / "src" / "sleuth" / f"{module}.py").read_text()
            package, _, name = following.replace("/", ".").rpartition(".")
            assert f"sleuth.{package}.{name} import" in source or re.search(
                rf"from sleuth\.{re.escape(package)} import .*\b{name}\b", source
            ), f"{module} does not import {following}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_at_most_120_characters(page: Path) -> None:
    """Tables and comments cannot be wrapped."""
    long = [
        number
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith(("|", "<!--", "[!", "![", "http"))
    ]
    assert long == []


def test_programs_of_the_page_on_agents_are_the_examples() -> None:
    programs = PROGRAM.findall((ROOT / "docs" / "agents.md").read_text())
    assert len(programs) >= 5
    assert [path for path, program in programs if not (ROOT / path).read_text().endswith(program)] == []
