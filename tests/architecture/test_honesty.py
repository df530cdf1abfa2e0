"""The code has no to-dos, swallowed errors, stubs, skipped tests or mocks of our own code."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

Law = Callable[[str], Iterator[str]]


@lru_cache(maxsize=1)  # the laws take turns on a file
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def postponed(source: str) -> Iterator[str]:
    """Marks of work left for later."""
    yield from (match.group() for match in LATER.finditer(source))


def stubs(source: str) -> Iterator[str]:
    """Functions without a body, except the methods of a Protocol and overloads."""
    tree = _parse(source)
    exempt = {id(item) for node in _protocols(tree) for item in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield f"line {node.lineno}: NotImplementedError"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) not in exempt and _idle(node.body):
            if "overload" in map(_dotted, node.decorator_list):
                continue
            yield f"line {node.lineno}: {node.name} does nothing"


def swallowed(source: str) -> Iterator[str]:
    """Errors caught and dropped."""
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _idle(node.body)):
            yield f"line {node.lineno}: an error is swallowed"
        if isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
            names = {_dotted(argument) for argument in node.args}
            yield from (f"line {node.lineno}: {name} is suppressed" for name in names & {"Exception", "BaseException"})


def mocks(source: str) -> Iterator[str]:
    """Our own code replaced by something else."""
    tree = _parse(source)
    ours = _names_of_ours(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="unittest.mock" | "mock") | ast.arg(arg="mocker"):
                yield f"line {node.lineno}: a mock"
            case ast.ImportFrom(module="unittest", names=[ast.alias(name="mock")]):
                yield f"line {node.lineno}: a mock"
            case ast.Import(names=names) if {name.name for name in names} & {"unittest.mock", "mock"}:
                yield f"line {node.lineno}: a mock"
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *_]) if _is_ours(target, ours):
                yield f"line {node.lineno}: {ast.unparse(target)} is patched"
            case ast.Assign(targets=[ast.Attribute(value=target)]) if _is_ours(target, ours):
                yield f"line {node.lineno}: {ast.unparse(target)} is patched"


def skips(source: str) -> Iterator[str]:
    """Tests that are reported as run but did nothing."""
    for node in ast.walk(_parse(source)):
        if not isinstance(node, ast.Attribute) or node.attr not in ("skip", "skipif", "importorskip"):
            continue
        if re.fullmatch(r"pytest\.(mark\.)?\w+", _dotted(node)):
            yield f"line {node.lineno}: {_dotted(node)}"


def _protocols(tree: ast.AST) -> list[ast.ClassDef]:
    """Classes derived from typing.Protocol, under whatever name the file imports it."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "typing"]
    names = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "Protocol"}
    bases = {"typing.Protocol", *names}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [node for node in classes if any(_dotted(base).partition("[")[0] in bases for base in node.bases)]


def _idle(body: list[ast.stmt]) -> bool:
    """True for `pass` and `...`, with or without a docstring before it."""
    *before, last = body
    ellipsis = isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is ...
    return (isinstance(last, ast.Pass) or ellipsis) and all(isinstance(statement, ast.Expr) for statement in before)


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _dotted(node: ast.AST) -> str:
    return ast.unparse(node)


def _names_of_ours(tree: ast.AST) -> set[str]:
    """Names a test binds to our modules, classes and functions."""
    ours = {"sleuth"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sleuth":
            ours |= {name.asname or name.name for name in node.names}
        if isinstance(node, ast.Import):
            ours |= {name.asname for name in node.names if name.asname and name.name.startswith("sleuth")}
    return ours


def _is_ours(target: ast.expr, ours: set[str]) -> bool:
    if isinstance(target, ast.Constant):
        return str(target.value).startswith("sleuth.")
    return _dotted(target).partition(".")[0] in ours


LAWS: dict[str, tuple[Law, set[Path]]] = {
    "postponed": (postponed, set(SOURCES + TESTS)),
    "stubs": (stubs, set(SOURCES)),
    "swallowed": (swallowed, set(SOURCES + TESTS)),
    "mocks": (mocks, set(TESTS)),
    "skips": (skips, set(TESTS)),
}


def test_laws_hold() -> None:
    assert SOURCES
    assert TESTS
    broken = {}
    for path in SOURCES + TESTS:
        source = path.read_text()
        for name, (law, files) in LAWS.items():
            if path in files and (found := list(law(source))):
                broken[f"{path}: {name}"] = found
    assert broken == {}


@pytest.mark.parametrize(
    ("law", "source"),
    [
        (postponed, "x = 1  # TO" + "DO: more"),
        (stubs, "def f():\n    raise NotImplementedError"),
        (stubs, "class A:\n    def f(self):\n        '''Says.'''\n        ..."),
        (stubs, "async def f():\n    pass"),
        (swallowed, "try:\n    f()\nexcept OSError:\n    pass"),
        (swallowed, "try:\n    f()\nexcept:\n    g()"),
        (swallowed, "with contextlib.suppress(Exception):\n    f()"),
        (mocks, "from unittest.mock import patch"),
        (mocks, "from unittest import mock"),
        (mocks, "import unittest.mock"),
        (mocks, "def test(mocker): f()"),
        (mocks, "monkeypatch.setattr('sleuth.runs.trajectory.trajectory_row', f)"),
        (mocks, "import sleuth.runs.trajectory as r\nmonkeypatch.setattr(r, 'trajectory_row', f)"),
        (mocks, "from sleuth.runs import trajectory\ntrajectory.trajectory_row = f"),
        (skips, "@pytest.mark.skipif(True)\ndef test(): f()"),
        (skips, "pytest.importorskip('torch')"),
    ],
)
def test_law_catches(law: Law, source: str) -> None:
    assert len(list(law(source))) == 1


@pytest.mark.parametrize(
    ("law", "source"),
    [
        (stubs, "from typing import Protocol\nclass A(Protocol[T]):\n    def f(self): ..."),
        (stubs, "from typing import Protocol as P\nclass A(P):\n    def f(self): ..."),
        (stubs, "class Protocol(typing.Protocol):\n    def f(self): ..."),
        (stubs, "def f():\n    '''An option of the command line.'''"),
        (swallowed, "try:\n    f()\nexcept OSError as error:\n    raise InputError from error"),
        (mocks, "monkeypatch.setattr(sys, 'stdout', f)"),
        (mocks, "monkeypatch.setenv('NO_COLOR', '1')"),
        (mocks, "self.x = 1"),
    ],
)
def test_law_allows(law: Law, source: str) -> None:
    assert list(law(source)) == []
