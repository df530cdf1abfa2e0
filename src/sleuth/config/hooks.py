"""Functions selected by a setting: an entry of a literal table, or a user's function as `import:package.function`.

A function that no other process can import, such as one defined in a notebook, is registered and gets a name that is
valid in this process. The signature of a user's function is checked before the run. An exception that it raises later
is reported in one sentence with the function and the line in the user's code.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from sleuth.errors import ConfigError, FunctionFailed

IMPORT = "import:"
EXPECTED = "expected import:package.function, a function that Python can import from here"
PACKAGE = Path(__file__).parents[1]
MAX_MESSAGE = 500  # characters of a user's exception in our own message
THIS_PROCESS = f"{IMPORT}this_process."  # prefix of registered functions

Entry = TypeVar("Entry")

_registered: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class Contract:
    """Parameters and return value of a user's function; `is_async` is None if plain and async are both accepted."""

    parameters: tuple[str, ...]
    returns: str
    is_async: bool | None = False

    def __str__(self) -> str:
        keyword = {True: "async def", False: "def", None: "def or async def"}[self.is_async]
        return f"{keyword} ({', '.join(self.parameters)}) that returns {self.returns}"

    def require(self, spec: str, function: Callable[..., Any]) -> None:
        """Raise ConfigError if the function's signature does not match this contract."""
        # A plain wrapper around an async function may run the coroutine or return it: only a call can show which.
        if self.is_async is True and not is_async(function) and not is_async(inspect.unwrap(function)):
            raise ConfigError(f"{spec!r} is not async; expected {self}{_definition(function)}")
        if self.is_async is False and is_async(function):
            raise ConfigError(f"{spec!r} is async; expected {self}{_definition(function)}")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins have no signature
            return
        try:
            signature.bind(*self.parameters)
        except TypeError as error:
            raise ConfigError(
                f"{spec!r} takes {signature} and cannot be called with {len(self.parameters)} arguments ({error}); "
                f"expected {self}{_definition(function)}"
            ) from error


def resolve(setting: str, name: str, table: Mapping[str, Entry], contract: Contract) -> Entry:
    """Return the table's entry, or import the function given as `import:package.function`."""
    if name.startswith(IMPORT):
        return cast(Entry, import_function(name, contract))
    if name in table:
        return table[name]
    nearest = get_close_matches(name, table, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"{setting} = {name!r} is unknown; expected {', '.join(table)} or import:package.function "
        f"(did you mean {nearest!r}?)"
    )


def register(function: Callable[..., Any]) -> str:
    """Return the name of a function for a setting: its import path, or a name that is valid in this process only."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is function:
        return f"{IMPORT}{module}.{name}"
    known = next((spec for spec, each in _registered.items() if each is function), None)
    if known is not None:
        return known
    name = getattr(function, "__name__", type(function).__name__)
    first = f"{THIS_PROCESS}{name if name.isidentifier() else 'function'}"
    spec = next(spec for spec in chain([first], (f"{first}_{n}" for n in count(2))) if spec not in _registered)
    bind(spec, function)
    return spec


def bind(spec: str, function: Callable[..., Any]) -> None:
    """Make a registered name stand for this function, for example when a run is resumed in another process."""
    _registered[spec] = function


def is_registered(spec: str) -> bool:
    """Whether the name was made by `register` and is valid in one process only."""
    return spec.startswith(THIS_PROCESS)


def import_function(spec: str, contract: Contract | None = None) -> Callable[..., Any]:
    """Import the function given as `import:package.function`, and check its signature against the contract, if any."""
    function = _registered_function(spec) if is_registered(spec) else _imported_function(spec)
    if contract is not None:
        contract.require(spec, function)
    return function


def _registered_function(spec: str) -> Callable[..., Any]:
    if spec not in _registered:
        raise ConfigError(
            f"{spec!r} is a function that a Python program defined and passed to sleuth.Trainer, and this process does "
            "not have it; pass it again, as in Trainer(reward=...).resume(RUN), or move it to a module"
        )
    return _registered[spec]


def _imported_function(spec: str) -> Callable[..., Any]:
    module_name, _, attribute = spec.removeprefix(IMPORT).rpartition(".")
    if not spec.startswith(IMPORT) or not attribute or not all(map(str.isidentifier, module_name.split("."))):
        hint = f"; write it {spec[::-1].replace(':', '.', 1)[::-1]}" if spec.count(":") == 2 else ""
        raise ConfigError(f"{spec!r} is not a function path{hint}; {EXPECTED}")
    module = _import_module(spec, module_name)
    if not hasattr(module, attribute):
        near = get_close_matches(attribute, vars(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; {EXPECTED}"
        raise ConfigError(f"{spec!r}: the module {module_name!r} has no {attribute!r}{hint}")
    function = getattr(module, attribute)
    if not callable(function):
        raise ConfigError(f"{spec!r} is not callable (type {type(function).__name__}); {EXPECTED}")
    return cast(Callable[..., Any], function)


def source_hash(spec: str) -> str | None:
    """Return the SHA-256 of the file that defines an imported function, or None if there is no file.

    For a registered function, only its own source is hashed.
    """
    function = import_function(spec)
    if is_registered(spec):
        try:
            return sha256(inspect.getsource(function).encode()).hexdigest()
        except (OSError, TypeError):  # a callable object, or typed into an interpreter
            return None
    file = sys.modules[spec.removeprefix(IMPORT).rpartition(".")[0]].__file__
    return sha256(Path(file).read_bytes()).hexdigest() if file is not None and Path(file).is_file() else None


def call(spec: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; raises FunctionFailed if a user's function raises."""
    if not spec.startswith(IMPORT):
        return function(*arguments)
    try:
        return function(*arguments)
    except Exception as error:
        raise FunctionFailed(describe_exception(spec, error)) from error


def describe_exception(spec: str, error: BaseException) -> str:
    """Describe an exception in one sentence with the function and the line in the user's code."""
    message = " ".join(str(error).split())
    message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."
    return f"{spec!r} raised {type(error).__name__}{f': {message}' if message else ''}{_location(error)}"


def is_async(function: Callable[..., Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _definition(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def _location(error: BaseException) -> str:
    """Return the innermost line outside Sleuth, preferably not in a library."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(PACKAGE) and not frame.filename.startswith("<frozen")
    ]
    users = [frame for frame in frames if not _is_library(frame.filename)]
    return next((f" ({frame.filename}:{frame.lineno})" for frame in reversed(users or frames)), "")


def _is_library(file: str) -> bool:
    return "site-packages" in file or Path(file).is_relative_to(Path(inspect.__file__).parent)


def _import_module(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    # A console script does not search the working directory. Append it, so that it shadows no library.
    if here not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{spec!r}: cannot import the module {name!r} ({error}); {EXPECTED}") from error
    except (Exception, SystemExit) as error:
        place = f" ({error.filename}:{error.lineno})" if isinstance(error, SyntaxError) else _location(error)
        raise ConfigError(
            f"{spec!r}: importing the module {name!r} raised {type(error).__name__}: {error}{place}; fix it, or name "
            "another function"
        ) from error
