"""The ranks of a run under torchrun: one process a GPU, or some on the CPU."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sleuth.errors import ConfigError
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
        if len({each for (each,) in found.gather([on_gpu])}) > 1:
            raise ConfigError(f"some of the {found.world} processes have no GPU; start as many as there are GPUs")
        return found

    def gather(self, mine: Sequence[Item]) -> list[list[Item]]:
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, list(mine), group=self.group)
        return every

    def barrier(self) -> None:
        dist.barrier(group=self.group)

    def aside(self) -> "Torchrun":
        return Torchrun(self.rank, self.world, _talk())

    def close(self) -> None:
        self.barrier()
        dist.destroy_process_group()


def require_gpus(processes: int) -> None:
    """Refuses more processes on a machine than it has GPUs, where it has any."""
    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise ConfigError(f"--nproc {processes} is more than the GPUs here, {gpus}; start at most as many processes")


def _talk() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    assert isinstance(group, dist.ProcessGroup)  # noqa: S101  every rank is in it
    return group
