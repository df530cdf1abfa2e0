"""What a run tells whoever watches it."""

from collections.abc import Mapping
from typing import Protocol


class RunObserver(Protocol):
    """Hears of stages and steps as they happen."""

    def begin(self, stage: str, total: int) -> None:
        """A stage of `total` parts begins; the one before has ended."""
        ...

    def advance(self, parts: int = 1) -> None:
        """Parts of the stage are done."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is recorded."""
        ...

    def log(self, line: str) -> None:
        """Something was found that a person should read."""
        ...


class SilentObserver:
    """Tells nobody."""

    def begin(self, stage: str, total: int) -> None:
        """Not told."""

    def advance(self, parts: int = 1) -> None:
        """Not told."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Not told."""

    def log(self, line: str) -> None:
        """Not told."""
