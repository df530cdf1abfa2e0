"""Run observers: receive the stages, steps and messages of a run, for example to show progress."""

from collections.abc import Mapping
from typing import Protocol


class RunObserver(Protocol):
    """Receives the events of a run as they happen."""

    def begin(self, stage: str, total: int) -> None:
        """Called when a stage of `total` parts begins, which also ends the previous stage."""
        ...

    def advance(self, parts: int = 1) -> None:
        """Called when `parts` more parts of the current stage are done."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after a training step is recorded."""
        ...

    def log(self, line: str) -> None:
        """Called with a message for the user."""
        ...


class SilentObserver:
    """Ignores all events; subclasses override the methods they need."""

    def begin(self, stage: str, total: int) -> None:
        """No-op."""

    def advance(self, parts: int = 1) -> None:
        """No-op."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """No-op."""

    def log(self, line: str) -> None:
        """No-op."""
