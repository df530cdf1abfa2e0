"""What a knob names: an entry of a literal table, or a function of the user's own by `import:package.function`."""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from sleuth.errors import ConfigError

IMPORT = "import:"
EXPECTED = "expected import:package.function, a function that Python can import from here"

Entry = TypeVar("Entry")


def chosen(knob: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry of the table, or for `import:` the function named, which must have the signature of the entries."""
    if name.startswith(IMPORT):
        return cast(Entry, imported(name))
    if name in table:
        return table[name]
    nearest = get_close_matches(name, table, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"{knob} = {name!r} is unknown, expected {', '.join(table)} or import:package.function; "
        f"the nearest is {nearest!r}"
    )


def imported(spec: str) -> Callable[..., Any]:
    """The function that `import:package.function` names."""
    module_name, _, attribute = spec.removeprefix(IMPORT).rpartition(".")
    if not spec.startswith(IMPORT) or not attribute or not all(map(str.isidentifier, module_name.split("."))):
        hint = f"; write it {spec[::-1].replace(':', '.', 1)[::-1]}" if spec.count(":") == 2 else ""
        raise ConfigError(f"{spec!r} names no function{hint}; {EXPECTED}")
    module = _module(spec, module_name)
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; {EXPECTED}"
        raise ConfigError(f"{spec!r}: the module {module_name!r} has no {attribute!r}{hint}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ConfigError(f"{spec!r} is of type {type(function).__name__} and cannot be called; {EXPECTED}")
    return cast(Callable[..., Any], function)


def _module(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    # A console script does not see the working folder, where a user's file lies; last, so that it hides no library.
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{spec!r}: the module {name!r} cannot be imported ({error}); {EXPECTED}") from error
