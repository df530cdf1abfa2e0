"""The processes of a run, one a GPU, as each of them sees the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sleuth.config.tree import Config
from sleuth.errors import ConfigError

Item = TypeVar("Item")


class Ranks(Protocol):
    """This process among all; whatever one calls, every other calls too.

    `what` names the operation. Ranks that meet at different ones raise TrainingStopped instead of waiting for ever.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        """What every rank brought, in their order, for all of them."""
        ...

    def barrier(self, what: str) -> None:
        """Waits until every rank is here."""
        ...

    def aside(self) -> "Ranks":
        """The same ranks for another thread, which gathers while this one does."""
        ...

    def close(self) -> None:
        """Takes leave of the others at the end of the work; after an error a process just ends."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """One process."""

    rank: int = 0
    world: int = 1

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:  # noqa: ARG002
        return [list(mine)]

    def barrier(self, what: str) -> None:
        """Nobody to wait for."""

    def aside(self) -> "Alone":
        return self

    def close(self) -> None:
        """Nobody to take leave of."""


ALONE = Alone()


def require(config: Config, world: int) -> None:
    """Refuses what several processes cannot share evenly, or at all."""
    if config.train.questions % world:
        raise ConfigError(
            f"train.questions = {config.train.questions} cannot be shared evenly by {world} processes; "
            f"choose a multiple of {world}, or another --nproc"
        )
    if config.engine.kind == "vllm" and world > 1:
        raise ConfigError(
            f"engine.kind = vllm is for one training process, and {world} were asked for; leave out --nproc, or choose "
            "engine.kind = paged"
        )
    if config.retrieval.record and world > 1:
        raise ConfigError(
            f"retrieval.record = true is for one process, {world} would write one file; record without --nproc"
        )
