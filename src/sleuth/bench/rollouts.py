"""Rollout speed, ours beside vLLM: the same episodes for both, one after the other on the same machine."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import torch
from transformers import PretrainedConfig

from sleuth.bench import engine, peer
from sleuth.bench.table import Table
from sleuth.bench.workloads import Episode, Job
from sleuth.errors import EngineFailure

WARM_UP = 8
# Room for an engine that counts in pages, or that wants a place for the token after the last.
MARGIN = 16

Heard = Callable[[str], None]


class Player(Protocol):
    """An engine that plays episodes."""

    def seconds(self, episodes: Sequence[Episode]) -> float:
        """How long all of the episodes take, begun together."""
        ...


@dataclass(frozen=True, slots=True)
class Rates:
    """How long each repetition of a job took."""

    sampled: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Sampled tokens a second in the fastest repetition."""
        return self.sampled / min(self.seconds)

    @property
    def spread(self) -> str:
        """By how much the slowest repetition falls short of the fastest."""
        return f"{1 - min(self.seconds) / max(self.seconds):.1%}"


@dataclass(frozen=True, slots=True)
class Row:
    """One job on one shape; why there is no figure of the peer's, where there is none."""

    shape: str
    job: Job
    ours: Rates
    theirs: Rates | str

    @property
    def ratio(self) -> float | str:
        """How many times as fast ours is."""
        return self.ours.best / self.theirs.best if isinstance(self.theirs, Rates) else "-"


@dataclass(frozen=True, slots=True)
class Peer:
    """Where vLLM is, and what differs from the settings it gets here."""

    python: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Theirs:
    """What the peer gave: its rates in the order of the jobs, and why it gave no more."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    rates: list[Rates] = field(default_factory=list)
    absence: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of one shape, and which vLLM with which settings was beside us."""

    rows: list[Row]
    theirs: Theirs


def compare(
    name: str,
    shape: PretrainedConfig,
    jobs: Sequence[Job],
    *,
    repetitions: int,
    beside: Peer | None,
    settings: Mapping[str, Any],
    heard: Heard,
) -> Comparison:
    """Every job on one shape. vLLM goes first: when its process is gone its memory surely is, too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    slots, context = max(job.concurrent for job in jobs), max(job.context for job in jobs) + MARGIN
    plan = _Plan(name, jobs, int(shape.vocab_size), repetitions, heard)
    theirs = _theirs(plan, shape, beside, slots, context)
    with engine.opened(shape, slots, context, device, settings) as ours:
        rates = list(plan.measured("ours", ours))
    others: list[Rates | str] = [*theirs.rates, *[theirs.absence] * (len(jobs) - len(theirs.rates))]
    rows = [Row(name, job, mine, other) for job, mine, other in zip(jobs, rates, others, strict=True)]
    return Comparison(rows, theirs)


def best_settings(slots: int, context: int) -> dict[str, Any]:
    """vLLM at its best for rollouts, with graphs for every batch: by itself it captures none above 512 sequences."""
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16" if torch.cuda.is_available() else "float32",
        "max_model_len": context,
        "max_num_seqs": slots,
        "max_num_batched_tokens": 16_384,
        "max_cudagraph_capture_size": max(512, slots),
        "gpu_memory_utilization": 0.85,
        "async_scheduling": True,
    }


def table(rows: Sequence[Row], sizes: str, repetitions: int) -> Table:
    """The comparison in words."""
    return Table(
        f"Sampled tokens a second, {sizes}, random weights, logprobs on, best of {repetitions}",
        ("shape", "workload", "concurrent", "ours", "spread", "vLLM", "spread", "times as fast"),
        [(row.shape, row.job.workload.value, row.job.concurrent, *_figures(row)) for row in rows],
    )


def _figures(row: Row) -> tuple[object, ...]:
    theirs = (row.theirs.best, row.theirs.spread) if isinstance(row.theirs, Rates) else (row.theirs, "-")
    return (row.ours.best, row.ours.spread, *theirs, row.ratio)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What both engines are measured by."""

    name: str
    jobs: Sequence[Job]
    vocabulary: int
    repetitions: int
    heard: Heard

    def measured(self, who: str, player: Player) -> Iterator[Rates]:
        """Every job, warmed up and repeated; the same tokens for whoever plays, and no two repetitions alike."""
        dice = Random(0)
        for job in self.jobs:
            yield self._rates(who, player, job, dice)

    def _rates(self, who: str, player: Player, job: Job, dice: Random) -> Rates:
        player.seconds(job.shortened(WARM_UP).episodes(self.vocabulary, dice))
        rates = Rates(job.sampled, tuple(self._once(player, job, dice) for _ in range(self.repetitions)))
        self.heard(f"{self.name}, {job.workload}, {job.concurrent} concurrent, {who}: {rates.best:,.0f} tokens/s")
        return rates

    def _once(self, player: Player, job: Job, dice: Random) -> float:
        episodes = job.episodes(self.vocabulary, dice)
        gc.collect()
        return player.seconds(episodes)


def _theirs(plan: _Plan, shape: PretrainedConfig, beside: Peer | None, slots: int, context: int) -> Theirs:
    """Every job by the peer, as far as it came."""
    if beside is None:
        return Theirs(absence="not asked")
    theirs = Theirs({**best_settings(slots, context), **beside.settings})
    try:
        with peer.opened(shape, theirs.settings, beside.python) as other:
            if other is None:
                return Theirs(absence="not installed")
            theirs.version = other.version
            theirs.rates.extend(plan.measured("vLLM", other))
    except EngineFailure as failure:
        plan.heard(str(failure))
        theirs.absence, theirs.failure = "failed", str(failure)
    return theirs
