"""The command line starts without heavy libraries, and each optional library is imported in one file only."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "sleuth"
HEAVY = ("torch", "transformers", "vllm", "faiss", "sglang", "ray", "bm25s", "numba")
OPTIONAL = frozenset(
    {
        "bitsandbytes",
        "datasets",
        "docx",
        "faiss",
        "huggingface_hub",
        "mcp",
        "mlflow",
        "openpyxl",
        "peft",
        "pptx",
        "py3langid",
        "pyarrow",
        "pypdf",
        "ray",
        "sentence_transformers",
        "sglang",
        "tensorboard",
        "trackio",
        "trafilatura",
        "verifiers",
        "vllm",
        "wandb",
    }
)


def libraries(source: str) -> Iterator[str]:
    """The optional libraries a module imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                roots = {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                roots = {module.partition(".")[0]}
            case _:
                continue
        yield from roots & OPTIONAL


def test_each_optional_library_has_one_home() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for library in libraries(path.read_text()):
            homes[library].add(str(path.relative_to(PACKAGE)))
    several = {library: files for library, files in homes.items() if len(files) > 1}
    assert several == {
        "mcp": {"agent/mcp_client.py", "serve/mcp.py"},  # a client and a server have nothing in common
        "ray": {"cluster/ray_client.py", "cluster/ray_libraries.py"},  # its core, and the libraries on top of it
    }


@pytest.mark.parametrize("source", ["import faiss", "def f():\n    from faiss.contrib import ondisk"])
def test_law_sees_every_form_of_import(source: str) -> None:
    assert list(libraries(source)) == ["faiss"]


def test_command_line_starts_without_heavy_libraries() -> None:
    script = f"import sys, sleuth.cli.main; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


def test_import_of_the_package_is_light_and_its_names_resolve() -> None:
    """`import sleuth` loads no library; the time of the import alone is measured, without starting Python."""
    script = """
import sys, time
start = time.perf_counter()
import sleuth
seconds = time.perf_counter() - start
loaded = {"torch", "transformers", "pydantic", "numpy", "httpx", "rich"} & set(sys.modules)
packages = {name.partition(".")[2].partition(".")[0] for name in sys.modules if name.startswith("sleuth.")}
print(sorted(loaded), sorted(packages), seconds < 0.2)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[] [] True"


def test_public_names_resolve_and_are_not_packages() -> None:
    import sleuth

    assert set(sleuth.__all__) <= set(dir(sleuth))
    packages = {path.stem for path in PACKAGE.iterdir()}
    assert [name for name in sleuth.__all__ if name in packages] == []
    classes = [name for name in sleuth.__all__ if isinstance(getattr(sleuth, name), type)]
    assert [*classes, "__version__"] == sleuth.__all__
    with pytest.raises(AttributeError, match="Indx"):
        _ = sleuth.Indx  # type: ignore[attr-defined]
