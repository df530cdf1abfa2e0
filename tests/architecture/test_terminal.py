"""Commands print through one module, which shows hidden characters of any text."""

import ast
from pathlib import Path

import pytest

COMMANDS = Path(__file__).parents[2] / "src" / "sleuth" / "cli"
DIRECT = frozenset(
    {"print", "Console", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"}
)


def direct(source: str) -> list[str]:
    """Calls that print without showing hidden characters."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {call.lineno}: {name}" for call in calls if (name := ast.unparse(call.func)) in DIRECT]


@pytest.mark.parametrize(
    "path", sorted(set(COMMANDS.glob("*.py")) - {COMMANDS / "terminal.py"}), ids=lambda path: path.stem
)
def test_commands_print_through_one_module(path: Path) -> None:
    assert direct(path.read_text()) == []


def test_a_direct_print_is_noticed() -> None:
    assert direct("typer.echo(text)\nconsole.print(text)\nprint(text)") == ["line 1: typer.echo", "line 3: print"]
