"""What a knob names: an entry of a literal table, or a function of the user's own by `import:package.function`.

A user's function is checked against its contract before the run, by its signature; what it raises later is put into
one sentence with the place in the user's code.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from sleuth.errors import ConfigError, FunctionFailed

IMPORT = "import:"
EXPECTED = "expected import:package.function, a function that Python can import from here"
PACKAGE = Path(__file__).parents[1]
LONGEST = 500  # characters of what a function raised, in a sentence

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Contract:
    """How a user's function is called and what it returns; `awaited` is None where plain and async will both do."""

    parameters: tuple[str, ...]
    returns: str
    awaited: bool | None = False

    def __str__(self) -> str:
        keyword = {True: "async def", False: "def", None: "def or async def"}[self.awaited]
        return f"{keyword} ({', '.join(self.parameters)}) that returns {self.returns}"

    def require(self, spec: str, function: Callable[..., Any]) -> None:
        """Refuses a function whose signature shows that it cannot be called so."""
        # A plain wrapper around an async function may return its coroutine, or run it: only calling it would tell.
        if self.awaited is True and not _is_async(function) and not _is_async(inspect.unwrap(function)):
            raise ConfigError(f"{spec!r} is not async; expected {self}{_defined(function)}")
        if self.awaited is False and _is_async(function):
            raise ConfigError(f"{spec!r} is async; expected {self}{_defined(function)}")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins have none
            return
        try:
            signature.bind(*self.parameters)
        except TypeError as error:
            raise ConfigError(
                f"{spec!r} takes {signature} and cannot be called with {len(self.parameters)} arguments ({error}); "
                f"expected {self}{_defined(function)}"
            ) from error


def chosen(knob: str, name: str, table: Mapping[str, Entry], contract: Contract) -> Entry:
    """The entry of the table, or for `import:` the function named, whose signature must fit the contract."""
    if name.startswith(IMPORT):
        return cast(Entry, imported(name, contract))
    if name in table:
        return table[name]
    nearest = get_close_matches(name, table, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"{knob} = {name!r} is unknown, expected {', '.join(table)} or import:package.function; "
        f"the nearest is {nearest!r}"
    )


def imported(spec: str, contract: Contract | None = None) -> Callable[..., Any]:
    """The function that `import:package.function` names; its signature must fit the contract, where one is given."""
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
    if contract is not None:
        contract.require(spec, function)
    return cast(Callable[..., Any], function)


def source_hash(spec: str) -> str | None:
    """SHA-256 of the file that defines the function of `import:package.function`; None where no file does."""
    imported(spec)
    file = sys.modules[spec.removeprefix(IMPORT).rpartition(".")[0]].__file__
    return sha256(Path(file).read_bytes()).hexdigest() if file is not None and Path(file).is_file() else None


def call(spec: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function; where it is the user's own, whatever it raises is a FunctionFailed."""
    if not spec.startswith(IMPORT):
        return function(*arguments)
    try:
        return function(*arguments)
    except Exception as error:
        raise FunctionFailed(raised(spec, error)) from error


def raised(spec: str, error: BaseException) -> str:
    """What a user's function raised, in a sentence with the place in their code."""
    said = " ".join(str(error).split())
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    return f"{spec!r} raised {type(error).__name__}{f': {said}' if said else ''}{_place(error)}"


def _is_async(function: Callable[..., Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _defined(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def _place(error: BaseException) -> str:
    """The innermost line that is neither ours nor a library's, or else the innermost that is not ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_outside(frame.filename)]
    users = [frame for frame in frames if not _is_library(frame.filename)]
    return next((f" ({frame.filename}:{frame.lineno})" for frame in reversed(users or frames)), "")


def _is_outside(file: str) -> bool:
    return not Path(file).is_relative_to(PACKAGE) and not file.startswith("<frozen")


def _is_library(file: str) -> bool:
    return "site-packages" in file or Path(file).is_relative_to(Path(inspect.__file__).parent)


def _module(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    # A console script does not see the working folder, where a user's file lies; last, so that it hides no library.
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{spec!r}: the module {name!r} cannot be imported ({error}); {EXPECTED}") from error
    except (Exception, SystemExit) as error:
        place = f" ({error.filename}:{error.lineno})" if isinstance(error, SyntaxError) else _place(error)
        raise ConfigError(
            f"{spec!r}: the module {name!r} cannot be imported, it raised {type(error).__name__}: {error}{place}; "
            "correct it, or name another function"
        ) from error
