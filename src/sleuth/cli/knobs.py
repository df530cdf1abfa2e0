"""`sleuth knobs`: every setting of a recipe with its type, default and meaning."""

import json
from collections.abc import Iterator

from sleuth.cli.printed import say
from sleuth.config import recipe


def knobs() -> None:
    """Print every knob of a recipe: key, type, default ("-" for absent) and meaning."""
    for line in lines():
        say(line)


def lines() -> Iterator[str]:
    """One line a knob; widths are fixed, so that a new knob changes no line but its own."""
    for knob in recipe.knobs():
        default = "-" if knob.default is None else json.dumps(knob.default)
        yield f"{knob.key:<28} {knob.type:<27} {default:<12} {knob.description}"
