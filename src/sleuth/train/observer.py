"""Observer of a run: receives its stages, steps and messages, for example to show progress."""

from collections.abc import Mapping
from typing import Protocol


class RunObserver(Protocol):
    """Receives the events of a run as they happen."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` parts begins; the previous one has ended."""
        ...

    def advance(self, parts: int = 1) -> None:
        """Parts of the stage are done."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step was recorded."""
        ...

    def log(self, line: str) -> None:
        """A message for the user."""
        ...


class SilentObserver:
    """Ignores all events; a base class for observers of some of them."""

    def begin(self, stage: str, total: int) -> None:
        """No-op."""

    def advance(self, parts: int = 1) -> None:
        """No-op."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """No-op."""

    def log(self, line: str) -> None:
        """No-op."""
