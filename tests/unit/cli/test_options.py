"""Numbers on the command line: each has a largest value, so that a typing error does not use up the memory."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from sleuth.cli.main import app, main
from sleuth.cli.sft import sft


def commands(of: typer.Typer) -> Iterator[Callable[..., Any]]:
    yield from (each.callback for each in of.registered_commands if each.callback is not None)
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance)


def numbers() -> Iterator[tuple[str, OptionInfo]]:
    """The options that take a whole number; those of sft are checked as settings are."""
    for command in commands(app):
        for name, hint in get_type_hints(command, include_extras=True).items() if command is not sft else ():
            kind, *more = get_args(hint) or (None,)
            if kind in (int, int | None, list[int] | None) and isinstance(more[0], OptionInfo):
                yield f"{command.__name__} {name}", more[0]


def test_every_number_has_a_largest_value() -> None:
    found = dict(numbers())
    assert len(found) > 60
    assert [name for name, option in found.items() if option.max is None] == []


@pytest.mark.parametrize(
    "words",
    [
        ["search", "index", "query", "--k", "100000000000000000000"],
        ["train", "quickstart", "--nproc", "100000000"],
        ["world", "make", "--out", "w", "--train", "100000000000000"],
        ["sft", "model", "--epochs", "100000000000000"],
    ],
)
def test_a_huge_number_ends_the_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sleuth", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
