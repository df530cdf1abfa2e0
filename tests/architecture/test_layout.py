"""Rules of the layout: sub-packages without import circles, and unit tests that mirror the source."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sleuth"
UNIT = ROOT / "tests" / "unit"
WITH_SUBPACKAGES = sorted({path.parent.parent for path in PACKAGE.glob("*/*/__init__.py")})


def imports_between_subpackages(package: Path) -> dict[str, set[str]]:
    """For each sub-package, the sibling sub-packages that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    prefix = f"sleuth.{package.name}."
    siblings = {path.parent.name for path in package.glob("*/__init__.py")}
    for path in package.glob("*/**/*.py"):
        home = path.relative_to(package).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                other = module.removeprefix(prefix).split(".")[0]
                if module.startswith(prefix) and other in siblings - {home}:
                    found[home].add(other)
    return found


@pytest.mark.parametrize("package", WITH_SUBPACKAGES, ids=lambda package: package.name)
def test_subpackages_do_not_import_each_other_in_circles(package: Path) -> None:
    imports = imports_between_subpackages(package)

    def reaches(start: str, seen: set[str]) -> set[str]:
        for other in imports.get(start, set()) - seen:
            seen.add(other)
            reaches(other, seen)
        return seen

    assert [name for name in imports if name in reaches(name, set())] == []


def test_unit_tests_mirror_the_source() -> None:
    """tests/unit/a/test_x.py and test_x_more.py are about src/sleuth/a/x.py."""
    strays = []
    for path in UNIT.rglob("test_*.py"):
        folder = PACKAGE / path.relative_to(UNIT).parent
        subject = path.stem.removeprefix("test_")
        modules = [each.stem for each in folder.glob("*") if each.stem != "__init__"] if folder.is_dir() else []
        if not any(subject == module or subject.startswith(f"{module}_") for module in modules):
            strays.append(str(path.relative_to(ROOT)))
    assert sorted(strays) == []
