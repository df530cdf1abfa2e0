"""The ranks of a run under torchrun: one process a GPU, or some on the CPU."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sleuth.errors import ConfigError, TrainingStopped
from sleuth.train.ranks import Alone, Ranks

# Ranks wait for one another's episodes, and for the first to build an index: who has died is for torchrun to find out.
PATIENCE = timedelta(days=7)

Item = TypeVar("Item")


def here() -> Ranks:
    """The ranks of the run this process is part of, by the environment that torchrun makes for it."""
    return Torchrun.join() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()


@dataclass(frozen=True, slots=True)
class Torchrun:
    """One of several processes: what they tell each other goes over gloo, weights and gradients over NCCL on GPUs."""

    rank: int
    world: int
    group: dist.ProcessGroup

    @classmethod
    def join(cls) -> "Torchrun":
        """Meets the others."""
        on_gpu = torch.cuda.is_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        found = cls(dist.get_rank(), dist.get_world_size(), _talk())
        if len({each for (each,) in found.gather([on_gpu], "the start")}) > 1:
            raise ConfigError(f"some of the {found.world} processes have no GPU; start as many as there are GPUs")
        return found

    def gather(self, mine: Sequence[Item], what: str) -> list[list[Item]]:
        every: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(every, (what, list(mine)), group=self.group)
        except RuntimeError as error:
            raise TrainingStopped(disconnected(error, what) or str(error)) from error
        if len({theirs for theirs, _ in every}) > 1:
            places = ", ".join(f"process {rank} at {theirs!r}" for rank, (theirs, _) in enumerate(every))
            raise TrainingStopped(
                f"the processes of this run no longer do the same: {places}; a function of yours (advantage, loss, "
                "protocol, method) probably answers differently in each of them: make it depend on its arguments "
                "alone, or train without --nproc"
            )
        return [brought for _, brought in every]

    def barrier(self, what: str) -> None:
        self.gather([], what)

    def aside(self) -> "Torchrun":
        return Torchrun(self.rank, self.world, _talk())

    def close(self) -> None:
        self.barrier("the end")
        dist.destroy_process_group()


def disconnected(error: BaseException, what: str = "a computation of all processes") -> str | None:
    """The sentence for an operation that failed because another process is gone or elsewhere; None for other errors."""
    # gloo raises a plain RuntimeError, whose text begins with the place in its source; NCCL's has a class.
    text = str(error).partition("\n")[0]
    if not isinstance(error, dist.DistError) and "/gloo/" not in text:
        return None
    cause = re.sub(r"^\[\S+\] ", "", text).partition(". ")[0]
    return (
        f"process {dist.get_rank()} waited for the others at {what!r} in vain ({cause}); see what ended or delayed "
        "them, then go on with: sleuth train --resume RUN"
    )


def require_gpus(processes: int) -> None:
    """Refuses more processes on a machine than it has GPUs, where it has any."""
    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise ConfigError(f"--nproc {processes} is more than the GPUs here, {gpus}; start at most as many processes")


def _talk() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101  every rank is in it
    return group
