"""What all actors share: the folder of the command, the greeting, and errors as values.

Exceptions travel as values, because Ray can restore only those whose arguments can be pickled.
"""

import os
import platform
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sleuth import __version__
from sleuth.cluster import ray_client
from sleuth.errors import ConfigError, Interrupted, TrainingStopped, UserError

# Kinds of failures, in the order in which one of several explains the others: ranks that lose another one are stopped.
DIED, USER, CRASHED, INTERRUPTED, STOPPED = "died", "user", "crashed", "interrupted", "stopped"
KINDS = (DIED, USER, CRASHED, INTERRUPTED, STOPPED)


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an actor reports when it starts."""

    address: str
    pid: int
    gpu: str | None  # the UUID of its GPU
    versions: tuple[tuple[str, str], ...]


def greet() -> Greeting:
    return Greeting(ray_client.own_address(), os.getpid(), own_gpu(), own_versions())


def own_versions() -> tuple[tuple[str, str], ...]:
    import torch

    return (("sleuth", __version__), ("Python", platform.python_version()), ("torch", str(torch.__version__)))


def own_gpu() -> str | None:
    """The UUID of this process's GPU, which is the only one that Ray lets it see."""
    import torch

    return str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None


def require_same_versions(name: str, greeting: Greeting) -> None:
    """Raise ConfigError if an actor runs other versions than this process."""
    for (library, theirs), (_, ours) in zip(greeting.versions, own_versions(), strict=True):
        if theirs != ours:
            raise ConfigError(
                f"{name} on {greeting.address} runs {library} {theirs}, but this machine {ours}; install the same "
                "version on every node"
            )


def enter(home: str) -> None:
    """Work in the folder of the command, where it exists, so that `import:` finds the user's modules."""
    import transformers

    if Path(home).is_dir():
        os.chdir(home)
    if home not in sys.path:
        sys.path.insert(0, home)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of an actor as a value."""

    kind: str
    text: str
    signal: int = 0

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        match error:
            case UserError():
                return cls(USER, str(error))
            case TrainingStopped():
                return cls(STOPPED, str(error))
            case Interrupted():
                return cls(INTERRUPTED, "", error.signal)
        return cls(CRASHED, "".join(traceback.format_exception(error)))

    def reraise(self) -> NoReturn:
        """Raise the exception in this process."""
        match self.kind:
            case "user":
                raise UserError(self.text)
            case "stopped" | "died":
                raise TrainingStopped(self.text)
            case "interrupted":
                raise Interrupted(self.signal)
        raise RuntimeError(f"an actor failed:\n{self.text}")
