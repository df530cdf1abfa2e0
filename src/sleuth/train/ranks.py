"""The processes of a run, one per GPU: a single process, or several started by torchrun."""

import asyncio
import os
import re
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from sleuth.config.agent import REMOTE
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, TrainingStopped
from sleuth.runs.interruption import INTERRUPTION

# Long, because ranks wait for episodes and for rank 0 to build an index; torchrun detects dead processes.
TIMEOUT = timedelta(days=7)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ranks(Protocol):
    """The processes (ranks) of a run, as seen by one of them. Every method is collective: all ranks must call it.

    `operation` names the call; ranks that call different operations raise TrainingStopped instead of deadlocking.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, mine: Sequence[Item], operation: str) -> list[list[Item]]:
        """Gather the items of every rank, in rank order, on all ranks."""

    def barrier(self, operation: str) -> None:
        """Wait until every rank has reached this call."""

    def for_thread(self) -> "Ranks":
        """Return the same ranks with a separate process group, for use in another thread."""

    def close(self) -> None:
        """Leave the group at the end of a successful run."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A single process."""

    rank: int = 0
    world: int = 1

    def gather(self, mine: Sequence[Item], operation: str) -> list[list[Item]]:  # noqa: ARG002
        return [list(mine)]

    def barrier(self, operation: str) -> None:
        """No-op: there is no other rank."""

    def for_thread(self) -> "Alone":
        return self

    def close(self) -> None:
        """No-op: there is no group to leave."""


ALONE = Alone()


@dataclass(frozen=True, slots=True)
class Torchrun:
    """One of several processes: objects are sent over gloo, weights and gradients over NCCL on GPUs."""

    rank: int
    world: int
    group: dist.ProcessGroup

    @classmethod
    def join(cls, rank: int = -1, world: int = -1, store: Store | None = None) -> "Torchrun":
        """Join the process group that meets at `store`, by default the one that torchrun describes."""
        on_gpu = torch.cuda.is_available()
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        joined = cls(dist.get_rank(), dist.get_world_size(), _object_group())
        if len({each for (each,) in joined.gather([on_gpu], "the start")}) > 1:
            raise ConfigError(f"some of the {joined.world} processes have no GPU; start at most one process per GPU")
        return joined

    def gather(self, mine: Sequence[Item], operation: str) -> list[list[Item]]:
        every: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(every, (operation, list(mine)), group=self.group)
        except RuntimeError as error:
            raise TrainingStopped(describe_disconnect(error, operation) or str(error)) from error
        if len({theirs for theirs, _ in every}) > 1:
            places = ", ".join(f"process {rank} at {theirs!r}" for rank, (theirs, _) in enumerate(every))
            raise TrainingStopped(
                f"the processes of this run diverged: {places}; an imported function (advantage, loss, protocol, "
                "method) probably returns different values in each process: make it depend on its arguments alone, "
                "or train without --nproc"
            )
        return [items for _, items in every]

    def barrier(self, operation: str) -> None:
        self.gather([], operation)

    def for_thread(self) -> "Torchrun":
        return Torchrun(self.rank, self.world, _object_group())

    def close(self) -> None:
        self.barrier("the end")
        dist.destroy_process_group()


def join_ranks() -> Ranks:
    """Return the ranks of this process's run: Torchrun if started by torchrun, otherwise Alone."""
    return Torchrun.join() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()


def _object_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101  every rank is in it
    return group


def describe_disconnect(error: BaseException, operation: str = "a computation of all processes") -> str | None:
    """Return a message if a collective failed because another process exited; None for other errors."""
    # gloo raises a plain RuntimeError that starts with a source location; NCCL has its own error class.
    text = str(error).partition("\n")[0]
    if not isinstance(error, dist.DistError) and "/gloo/" not in text:
        return None
    cause = re.sub(r"^\[\S+\] ", "", text).partition(". ")[0]
    if not dist.is_initialized():
        return (
            f"a process could not connect to the others at the start ({cause}); check that all of them run and that "
            "the ports between the machines are open, then run the command again"
        )
    return (
        f"process {dist.get_rank()} lost the other processes at {operation!r} ({cause}); find out what ended or "
        "delayed them, then run: sleuth train --resume RUN"
    )


def require_supported(config: Config, world: int) -> None:
    """Raise ConfigError if a setting does not support this number of processes."""
    if config.train.questions % world:
        raise ConfigError(
            f"train.questions = {config.train.questions} is not divisible by {world} processes; "
            f"choose a multiple of {world}, or another --nproc"
        )
    if config.retrieval.record and world > 1:
        raise ConfigError(
            f"retrieval.record = true supports one process, but {world} would write the same file; leave out --nproc"
        )
    if config.gateway.port and world > 1:
        raise ConfigError(
            f"gateway.port = {config.gateway.port} supports one process, but {world} would each open a gateway there; "
            "remove it, or leave out --nproc"
        )
    if config.agent.run == REMOTE and world > 1:
        raise ConfigError(
            f"agent.run = {REMOTE} supports one process, but {world} would each have a gateway with its own address; "
            "leave out --nproc, or name the agent itself: agent.run = import:package.function"
        )


def require_gpus(processes: int) -> None:
    """Raise ConfigError if there are more processes than GPUs, on a machine that has GPUs."""
    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise ConfigError(f"--nproc {processes} exceeds the number of GPUs, {gpus}; start at most one process per GPU")


async def cancel_together(work: Coroutine[Any, Any, Result], ranks: Ranks) -> Result:
    """Await this rank's work; raises CancelledError on every rank if any rank received a signal.

    Collective: ranks whose work has finished are cancelled here too if another rank was interrupted.
    """
    result: Result | None = None
    try:
        result = await INTERRUPTION.cancel_on_signal(work)
    except asyncio.CancelledError:
        if INTERRUPTION.signal is None:
            raise
    if share_signal(ranks) is not None:
        raise asyncio.CancelledError
    assert result is not None  # noqa: S101  without a signal the work was not cancelled
    return result


def share_signal(ranks: Ranks) -> int | None:
    """Return the signal that any rank has received, and let every rank act as if it had received it; collective."""
    received = [number for theirs in ranks.gather([INTERRUPTION.signal], "signals received") for number in theirs]
    first = next((number for number in received if number), None)
    INTERRUPTION.signal = INTERRUPTION.signal or first
    return first
