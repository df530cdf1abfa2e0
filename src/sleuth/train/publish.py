"""New weights for the engine: none to send where it generates on the trainer's own parameters, else a copy."""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from sleuth.engines.base import Engine
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, TrainingStopped


class Publisher(Protocol):
    """Lets the engine go on with the newest weights, under their version."""

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        """Swaps the weights; keys and values of older ones are dropped unless `keep_cache`, which is not exact."""
        ...


class Shared:
    """Engine and trainer have the same parameters."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        self._engine.publish(None, version, keep_cache=keep_cache)


class Copied:
    """The engine has parameters of its own, into which the trainer's are copied."""

    def __init__(self, engine: PagedEngine, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        self._engine, self._weights = engine, weights

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        self._engine.publish(self._weights(), version, keep_cache=keep_cache)


class Sent:
    """The engine is elsewhere: weights go there once for a version, which names them."""

    def __init__(self, engine: Engine, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        self._engine, self._weights = engine, weights
        self._version: int | None = None  # that the engine has; whatever it had before the first is not known

    def publish(self, version: int, *, keep_cache: bool = False) -> None:  # noqa: ARG002  servers always drop it
        if version == self._version:
            return
        try:
            self._engine.publish(self._weights(), version)
        except EngineFailure as failure:
            raise TrainingStopped(f"{failure}; mend what failed and resume the run") from failure
        self._version = version
