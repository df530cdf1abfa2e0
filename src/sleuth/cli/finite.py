"""Numbers on the command line that are numbers: inf passes every bound, and nan where there is none."""

import math

import typer

from sleuth.errors import ConfigError


def finite(option: typer.CallbackParam, value: float | None) -> float | None:
    """The value of an option, which must be a finite number."""
    if value is not None and not math.isfinite(value):
        raise ConfigError(f"{option.opts[0]} is {value}: expected a finite number")
    return value
