"""Imports go down the layers, packages of one layer never import each other, and all imports are absolute."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "sleuth"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "records"}),
    frozenset({"credentials", "hub", "recipes"}),
    frozenset({"config", "runs", "page", "http"}),
    frozenset({"corpus", "reward", "algorithms", "model"}),
    frozenset({"retrieval", "engines"}),
    frozenset({"agent"}),
    frozenset({"gateway"}),
    frozenset({"evaluate", "synthesis", "serve", "view"}),
    frozenset({"train"}),
    frozenset({"sft"}),
    frozenset({"cluster"}),
    frozenset({"pipeline"}),
    frozenset({"start", "reproduce", "bench", "doctor"}),
    frozenset({"api"}),
    frozenset({"cli"}),
)
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The package that a file belongs to; "" for the top-level `__init__.py`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removesuffix("__init__")


def imported_rooms(tree: ast.AST) -> Iterator[str]:
    """Yield the packages that a module imports, including imports inside functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                dotted = [name.name for name in names]
            case ast.ImportFrom(module="sleuth", names=names):
                dotted = [f"sleuth.{name.name}" for name in names if not name.name.startswith("__")]
            case ast.ImportFrom(module=str(module)):
                dotted = [module]
            case _:
                continue
        yield from (name.split(".")[1] for name in dotted if name.startswith("sleuth."))


def offences(room: str, source: str) -> list[str]:
    """List the imports of a module that violate the layers."""
    tree = ast.parse(source)
    if room == "":  # the top-level package names its classes for type checkers, and imports them on first use
        tree.body = [node for node in tree.body if not _is_for_type_checkers(node)]
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    upward = [other for other in imported_rooms(tree) if other != room and not _below(other, room)]
    return [f"relative import in line {node.lineno}" for node in relative] + [f"{room} -> {other}" for other in upward]


def _is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _below(other: str, room: str) -> bool:
    return room != "" and RANK[other] < RANK[room]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    assert offences(room_of(path), path.read_text()) == []


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(path) for path in MODULES} - {""}
    assert sorted(rooms - set(RANK)) == [], "add the new room to LAYERS, and say why in docs/decisions"


@pytest.mark.parametrize(
    ("room", "source", "offence"),
    [
        ("corpus", "from sleuth.reward.answers import em", "corpus -> reward"),
        ("records", "import sleuth.config", "records -> config"),
        ("train", "def f():\n    from sleuth import cli", "train -> cli"),
        ("", "from sleuth import records", " -> records"),
        ("agent", "from .ledger import Ledger", "relative import in line 1"),
    ],
)
def test_law_catches(room: str, source: str, offence: str) -> None:
    assert offences(room, source) == [offence]


@pytest.mark.parametrize(
    "source",
    [
        "from sleuth.agent.ledger import Ledger",
        "from sleuth import __version__, errors",
        "import torch, sleuth.engines",
    ],
)
def test_law_allows(source: str) -> None:
    assert offences("agent", source) == []


def test_the_top_level_package_may_name_classes_for_type_checkers() -> None:
    assert offences("", "if TYPE_CHECKING:\n    from sleuth.records import Score") == []
