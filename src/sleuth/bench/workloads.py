"""Generation workloads: episodes of random tokens with a fixed number of sampled tokens; does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random


class Workload(StrEnum):
    SINGLE = "single"
    GROUPS = "groups"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Turn:
    """The given tokens of a turn, and the number of tokens to sample after them."""

    given: tuple[int, ...]
    sampled: int


Episode = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples per prompt, and the lengths of prompts, turns and observations in tokens."""

    group: int = 8
    prompt: int = 300
    new: int = 128
    observation: int = 500


@dataclass(frozen=True, slots=True)
class Job:
    workload: Workload
    concurrent: int
    sizes: Sizes = Sizes()

    @property
    def sampled(self) -> int:
        return self.concurrent * self.sizes.new * self._turns

    @property
    def context(self) -> int:
        return self.sizes.prompt + self.sizes.new * self._turns + self.sizes.observation * (self._turns - 1)

    @property
    def _turns(self) -> int:
        return 2 if self.workload is Workload.TURNS else 1

    def shortened(self, new: int) -> "Job":
        """Copy of the job with fewer sampled tokens, for a warm-up."""
        return replace(self, sizes=replace(self.sizes, new=min(new, self.sizes.new)))

    def episodes(self, vocabulary: int, random: Random) -> list[Episode]:
        """Draw new random episodes, so that no engine benefits from cached prefixes."""

        def turn(length: int) -> Turn:
            return Turn(tuple(random.choices(range(vocabulary), k=length)), self.sizes.new)

        match self.workload:
            case Workload.SINGLE:
                return [(turn(self.sizes.prompt),) for _ in range(self.concurrent)]
            case Workload.GROUPS:
                openings = [turn(self.sizes.prompt) for _ in range(0, self.concurrent, self.sizes.group)]
                return [(openings[sample // self.sizes.group],) for sample in range(self.concurrent)]
            case Workload.TURNS:
                return [(turn(self.sizes.prompt), turn(self.sizes.observation)) for _ in range(self.concurrent)]


def jobs(workloads: Sequence[Workload], concurrents: Sequence[int], sizes: Sizes) -> list[Job]:
    return [Job(workload, concurrent, sizes) for workload in workloads for concurrent in sorted(set(concurrents))]
