"""Forward and backward passes: ours on packed rows beside the stock way, every position but the first a scored one.

Suffixes: R rows, L tokens of a row, S scored tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, log
from statistics import median
from time import monotonic

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from sleuth.bench import policies, stock
from sleuth.bench.device import forget_peak, here, mfu, peak_gib, release, settle
from sleuth.bench.table import Table
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.config.train import TrainConfig
from sleuth.model.packing import pack, row
from sleuth.records import Group, Question, Score, StopReason, Trajectory
from sleuth.train.optimiser import Optimiser
from sleuth.train.step import Learner, StepRates

WARM_UP = 3
STOCK, CHECKPOINTED = "stock", "stock, checkpointing"
OURS, STEPPED = "ours", "ours, a whole update with AdamW"
RATE = 1e-6

Pass = Callable[[], object]
Heard = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one length, how often they are passed through, and the share of our layers that is computed again."""

    rows: int = 16
    row_tokens: int = 1000
    repetitions: int = 5
    recompute: float = 0.0

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """One way: the seconds of every repetition, or why there are none."""

    way: str
    seconds: tuple[float, ...] = ()
    mfu: float | None = None
    peak_gib: float | None = None
    failure: str = ""


def compare(shape: PretrainedConfig, work: Work, heard: Heard) -> list[Timing]:
    """Every way in turn, each alone on the device. Ours comes last: it changes how PyTorch multiplies."""
    device, size = here(), _parameters(shape)
    ids_RL = torch.randint(int(shape.vocab_size), (work.rows, work.row_tokens), device=device)
    ways: dict[str, Callable[[], Pass]] = {
        STOCK: lambda: stock.passes(shape, ids_RL, checkpointing=False),
        CHECKPOINTED: lambda: stock.passes(shape, ids_RL, checkpointing=True),
        OURS: lambda: _ours(shape, work, ids_RL),
        STEPPED: lambda: _stepped(shape, work, ids_RL),
    }
    found = []
    for way, make in ways.items():
        found.append(timed(way, make, work, size, device))
        heard(f"{way}: {found[-1].failure or f'{1e3 * median(found[-1].seconds):.1f} ms'}")
    return found


def timed(way: str, make: Callable[[], Pass], work: Work, size: int, device: torch.device) -> Timing:
    """The repetitions of what `make` makes, after a warm-up; too little memory is told, not raised."""
    try:
        return _timed(way, make(), work, size, device)
    except torch.OutOfMemoryError:
        return Timing(way, failure="out of memory")
    finally:
        release(device)


def _timed(way: str, once: Pass, work: Work, size: int, device: torch.device) -> Timing:
    forget_peak(device)
    for _ in range(WARM_UP):
        once()
    seconds = []
    for _ in range(work.repetitions):
        settle(device)
        began = monotonic()
        once()
        settle(device)
        seconds.append(monotonic() - began)
    return Timing(way, tuple(seconds), mfu(size, work.tokens, median(seconds), device), peak_gib(device))


def _parameters(shape: PretrainedConfig) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in AutoModelForCausalLM.from_config(shape).parameters())


def _ours(shape: PretrainedConfig, work: Work, ids_RL: Tensor) -> Pass:
    policy = policies.policy(shape, policies.shipped(), ids_RL.device, recompute=work.recompute)
    rows = [row(ids, [0.0] + [1.0] * (len(ids) - 1)) for ids in ids_RL.tolist()]
    packed = list(pack(rows, work.tokens, ids_RL.device))

    def once() -> None:
        for each in packed:
            logprob_S, _ = policy.score(each, 1.0)
            (-logprob_S.mean()).backward()
        policy.model.zero_grad(set_to_none=True)

    return once


def _stepped(shape: PretrainedConfig, work: Work, ids_RL: Tensor) -> Pass:
    """What the trainer does with a mini-batch: loss, backward pass, and the step on fp32 masters."""
    policy = policies.policy(shape, policies.shipped(), ids_RL.device, recompute=work.recompute)
    train = TrainConfig(pack_tokens=work.tokens, samples=work.rows, learning_rate=RATE)
    optimiser = Optimiser(policy.model.named_parameters(), learning_rate=RATE, weight_decay=train.weight_decay)
    learner = Learner(policy, optimiser, AlgorithmConfig(), train, work.row_tokens)
    group = _group(ids_RL.tolist(), int(shape.vocab_size))
    return lambda: learner.learn([group], StepRates(RATE), isfinite, recompute=False)


def _group(rows: Sequence[Sequence[int]], words: int) -> Group:
    """The rows as episodes of one question, sampled but for their first token, as likely as random weights have it."""
    question = Question("bench", "?", (), "bench")
    made = tuple(_trajectory(question, sample, ids, -log(words)) for sample, ids in enumerate(rows))
    return Group(question, made, tuple(Score(float(each.sample), {}) for each in made))


def _trajectory(question: Question, sample: int, ids: Sequence[int], logprob: float) -> Trajectory:
    after = len(ids) - 1
    return Trajectory(
        question=question,
        group=0,
        sample=sample,
        step=0,
        ids=tuple(ids),
        sampled=(False, *[True] * after),
        logprobs=(logprob,) * after,
        versions=(0,) * after,
        turns=(),
        stop=StopReason.OUT_OF_TURNS,
    )


def table(name: str, work: Work, timings: Sequence[Timing]) -> Table:
    """The comparison in words."""
    again = f", {work.recompute:.0%} of our layers computed again" if work.recompute else ""
    return Table(
        f"Forward and backward, {name}, {work.rows} rows of {work.row_tokens:,} tokens, every position scored, "
        f"median of {work.repetitions}{again}",
        ("", "ms", "tokens/s", "MFU (6N)", "peak GiB", "times as fast as stock"),
        [_cells(each, work, timings[0]) for each in timings],
    )


def _cells(timing: Timing, work: Work, first: Timing) -> tuple[object, ...]:
    if timing.failure:
        return (timing.way, timing.failure, *["-"] * 4)
    middle = median(timing.seconds)
    times = median(first.seconds) / middle if first.seconds else "-"
    figures = ("-" if each is None else each for each in (timing.mfu, timing.peak_gib))
    return (timing.way, 1e3 * middle, work.tokens / middle, *figures, times)
