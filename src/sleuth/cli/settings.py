"""sleuth settings: every setting of a recipe with its type, default and description."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated

from typer import Argument

from sleuth.cli.terminal import echo
from sleuth.config import recipe
from sleuth.errors import ConfigError


def settings(
    group: Annotated[str | None, Argument(help="A table such as train or algorithm.kl. Default: all.")] = None,
) -> None:
    """List the settings of a recipe: key, type, default ("-" if absent) and description."""
    for line in lines(group):
        echo(line)


def lines(group: str | None = None) -> Iterator[str]:
    """Format one line per setting, in fixed-width columns so that a new setting changes no other line."""
    every = list(recipe.settings())
    chosen = [each for each in every if group is None or each.key == group or each.key.startswith(f"{group}.")]
    if not chosen:
        tables = sorted({each.key.rpartition(".")[0] for each in every} - {""})
        near = get_close_matches(str(group), tables, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no settings group {group!r}; {hint}groups: {', '.join(tables)}")
    for each in chosen:
        default = "-" if each.default is None else json.dumps(each.default)
        yield f"{each.key:<28} {each.type:<27} {default:<12} {each.description}"
