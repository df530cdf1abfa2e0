"""What an engine is asked to generate: episodes of random tokens, and exactly so many sampled after them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random


class Workload(StrEnum):
    """What the episodes look like."""

    SINGLE = "single"
    GROUPS = "groups"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that are given, and how many are sampled after them."""

    given: tuple[int, ...]
    sampled: int


Episode = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many samples share a prompt in groups, and how long prompts, turns and observations are, in tokens."""

    group: int = 8
    prompt: int = 300
    new: int = 128
    observation: int = 500


@dataclass(frozen=True, slots=True)
class Job:
    """A workload of so many episodes at the same time."""

    workload: Workload
    concurrent: int
    sizes: Sizes = Sizes()

    @property
    def sampled(self) -> int:
        """Tokens sampled by all episodes together."""
        return self.concurrent * self.sizes.new * self._turns

    @property
    def context(self) -> int:
        """Tokens of a whole episode."""
        between = self.sizes.observation * (self._turns - 1)
        return self.sizes.prompt + self.sizes.new * self._turns + between

    def shortened(self, new: int) -> "Job":
        """The same with fewer sampled tokens, to warm up."""
        return replace(self, sizes=replace(self.sizes, new=min(new, self.sizes.new)))

    def episodes(self, vocabulary: int, dice: Random) -> list[Episode]:
        """Episodes of tokens drawn anew, so that nothing an engine kept from earlier ones is of use."""
        match self.workload:
            case Workload.SINGLE:
                return [(self._opening(vocabulary, dice),) for _ in range(self.concurrent)]
            case Workload.GROUPS:
                openings = [self._opening(vocabulary, dice) for _ in range(0, self.concurrent, self.sizes.group)]
                return [(openings[sample // self.sizes.group],) for sample in range(self.concurrent)]
            case Workload.TURNS:
                return [self._two_turns(vocabulary, dice) for _ in range(self.concurrent)]

    @property
    def _turns(self) -> int:
        return 2 if self.workload is Workload.TURNS else 1

    def _opening(self, vocabulary: int, dice: Random) -> Turn:
        return Turn(_drawn(self.sizes.prompt, vocabulary, dice), self.sizes.new)

    def _two_turns(self, vocabulary: int, dice: Random) -> Episode:
        observed = Turn(_drawn(self.sizes.observation, vocabulary, dice), self.sizes.new)
        return self._opening(vocabulary, dice), observed


def jobs(workloads: Sequence[Workload], concurrents: Sequence[int], sizes: Sizes) -> list[Job]:
    """Every workload with every number of episodes, the fewest first."""
    return [Job(workload, concurrent, sizes) for workload in workloads for concurrent in sorted(set(concurrents))]


def _drawn(count: int, vocabulary: int, dice: Random) -> tuple[int, ...]:
    return tuple(dice.choices(range(vocabulary), k=count))
