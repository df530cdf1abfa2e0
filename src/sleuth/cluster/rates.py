"""Rates that the simulation of a cluster uses: measured in runs, predicted by the planner, or given in a file."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from sleuth.config.section import NonNegativeFloat, NonNegativeInt, PositiveInt
from sleuth.errors import InputError
from sleuth.runs.json_files import read_json
from sleuth.runs.trajectory import first_problem

Rate = Annotated[float, Field(gt=0, le=1e15)]  # per second
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class TurnShape:
    """One turn: tokens given before it, tokens sampled in it, and whether a search follows."""

    given: NonNegativeInt
    sampled: NonNegativeInt
    searches: bool


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """The lengths of an episode's turns, and its reward if it is known."""

    turns: Annotated[tuple[TurnShape, ...], Field(min_length=1)]
    reward: float | None = None

    @property
    def sampled(self) -> int:
        return sum(turn.sampled for turn in self.turns)

    @property
    def tokens(self) -> int:
        return sum(turn.given + turn.sampled for turn in self.turns)


GroupShape = Annotated[tuple[EpisodeShape, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """Rates of one rollout worker, of one trainer process and between them, and the lengths of episodes.

    `decode` has pairs: sequences decoded at the same time, and tokens per second of all of them together. `turn` is
    the seconds that a worker loses per turn besides decode and prefill. `train` and `score` count tokens per second of
    the passes with and without gradients; `score` also covers rewards and writing. `step` is the seconds of a training
    step that depend neither on tokens nor on the number of trainers. With several trainers, every pack of `pack` tokens
    takes at least `pack_seconds` for collectives. Where trainer and rollout worker share a device, both run at
    `overlap` of their speed while both are busy. Episodes are drawn from `groups`.
    """

    __pydantic_config__ = STRICT

    source: str
    decode: Annotated[tuple[tuple[PositiveInt, Rate], ...], Field(min_length=1)]
    prefill: Rate
    turn: NonNegativeFloat
    train: Rate
    score: Rate | None
    step: NonNegativeFloat
    pack: PositiveInt
    pack_seconds: NonNegativeFloat
    weights: NonNegativeInt
    transfer: Rate
    search: NonNegativeFloat
    overlap: Annotated[float, Field(gt=0, le=1)]
    groups: Annotated[tuple[GroupShape, ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        if len({count for count, _ in self.decode}) < len(self.decode):
            raise ValueError(f"decode = {self.decode} has a number of sequences twice; give one rate for each")

    def decode_step(self, lanes: int) -> float:
        """Seconds in which each of so many sequences gets one token: linear between and beyond the measured points."""
        return _decode_step(self.decode, lanes)

    @property
    def publish(self) -> float:
        """Seconds of sending the weights to the rollout workers."""
        return self.weights / self.transfer

    def train_seconds(self, trained: float, scored: float, trainers: int, updates: int) -> float:
        """Seconds of a training step on so many tokens, shared by the trainers, in several optimiser updates."""
        passes = trained / trainers / self.train + (scored / trainers / self.score if self.score else 0.0)
        packs = updates * ceil(trained / trainers / updates / self.pack) if trainers > 1 else 0
        return max(passes, packs * self.pack_seconds) + self.step

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean tokens of an episode: sampled, and all."""
        episodes = [episode for group in self.groups for episode in group]
        sampled, tokens = sum(each.sampled for each in episodes), sum(each.tokens for each in episodes)
        return sampled / len(episodes), tokens / len(episodes)


@lru_cache(maxsize=1 << 16)
def _decode_step(decode: tuple[tuple[int, float], ...], lanes: int) -> float:
    points = sorted((count, count / rate) for count, rate in decode)
    if len(points) == 1:
        return points[0][1]
    counts = [count for count, _ in points]
    right = min(max(bisect_left(counts, lanes), 1), len(points) - 1)
    (low, fast), (high, slow) = points[right - 1], points[right]
    if lanes < low:
        return fast
    return max(fast, fast + (slow - fast) * (lanes - low) / (high - low))


SCHEMA = TypeAdapter(ClusterRates)


def read_rates(path: Path, base: Mapping[str, Any]) -> ClusterRates:
    """Read a JSON file of rates; those that it leaves out are taken from `base`."""
    try:
        return SCHEMA.validate_python({**base, "source": str(path), **read_json(path)})
    except ValidationError as error:
        raise InputError(
            f"{path} is not a file of rates: {first_problem(error)}; see docs/simulate.md for its format"
        ) from None


def rates_row(rates: ClusterRates) -> dict[str, Any]:
    """Return the rates as plain values for JSON."""
    row: dict[str, Any] = SCHEMA.dump_python(rates, mode="json")
    return row
