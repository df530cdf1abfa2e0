"""Training speed: our forward and backward passes on packed rows next to stock Hugging Face, and the head's memory.

Suffixes: R rows, L tokens of a row, S scored tokens, V vocabulary, W model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from math import log as ln
from statistics import median
from time import monotonic

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from sleuth.bench.measurement import (
    Log,
    Table,
    default_device,
    mfu,
    peak_gib,
    release_memory,
    reset_peak_memory,
    synchronize,
)
from sleuth.bench.models import quickstart_tokens, random_model, random_policy
from sleuth.config.algorithm import AlgorithmConfig
from sleuth.config.train import TrainConfig
from sleuth.model import lm_head
from sleuth.model.packing import pack, row
from sleuth.records import Group, Question, Score, Segment, StopReason, Trajectory
from sleuth.train.metrics import GIB
from sleuth.train.optimiser import Optimiser
from sleuth.train.step import Learner, StepRates

WARMUP = 3
STOCK, CHECKPOINTED = "stock", "stock, checkpointing"
OURS, UPDATE = "ours", "ours, a whole update with AdamW"
LEARNING_RATE = 1e-6

Pass = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Work:
    """The workload: rows of equal length, the number of repetitions, and the fraction of recomputed layers."""

    rows: int = 16
    row_tokens: int = 1000
    repetitions: int = 5
    recompute: float = 0.0

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    way: str
    seconds: tuple[float, ...] = ()
    mfu: float | None = None
    peak_gib: float | None = None
    failure: str = ""


def compare(shape: PretrainedConfig, work: Work, log: Log) -> list[Timing]:
    """Time each implementation alone on the device, ours last, because it changes PyTorch's matmul settings."""
    device = default_device()
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModelForCausalLM.from_config(shape).parameters())
    ids_RL = torch.randint(int(shape.vocab_size), (work.rows, work.row_tokens), device=device)
    implementations: dict[str, Callable[[], Pass]] = {
        STOCK: lambda: _stock_pass(shape, ids_RL, checkpointing=False),
        CHECKPOINTED: lambda: _stock_pass(shape, ids_RL, checkpointing=True),
        OURS: lambda: _our_pass(shape, work, ids_RL),
        UPDATE: lambda: _our_update(shape, work, ids_RL),
    }
    timings = []
    for name, make in implementations.items():
        timings.append(time_pass(name, make, work, size, device))
        log(f"{name}: {timings[-1].failure or f'{1e3 * median(timings[-1].seconds):.1f} ms'}")
    return timings


def time_pass(name: str, make: Callable[[], Pass], work: Work, size: int, device: torch.device) -> Timing:
    """Time the pass that `make` returns, after a warm-up; running out of memory is recorded as its failure."""
    try:
        run = make()
        reset_peak_memory(device)
        for _ in range(WARMUP):
            run()
        seconds = []
        for _ in range(work.repetitions):
            synchronize(device)
            start = monotonic()
            run()
            synchronize(device)
            seconds.append(monotonic() - start)
        return Timing(name, tuple(seconds), mfu(size, work.tokens, median(seconds), device), peak_gib(device))
    except torch.OutOfMemoryError:
        return Timing(name, failure="out of memory")
    finally:
        del make
        release_memory(device)


def _stock_pass(shape: PretrainedConfig, ids_RL: Tensor, *, checkpointing: bool) -> Pass:
    """Stock Hugging Face: its own modules, SDPA attention, and the logits of all tokens at once.

    Rows have equal length, so padding costs nothing, and PyTorch computes SDPA with FlashAttention.
    """
    model = random_model(shape, ids_RL.device, attention="sdpa")
    model.train()
    if checkpointing:
        # transformers 5.23 renames the method.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})

    def run() -> None:
        model(input_ids=ids_RL, labels=ids_RL, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    return run


def _our_pass(shape: PretrainedConfig, work: Work, ids_RL: Tensor) -> Pass:
    policy = random_policy(shape, quickstart_tokens(), ids_RL.device, recompute=work.recompute)
    rows = [row(ids, [0.0] + [1.0] * (len(ids) - 1)) for ids in ids_RL.tolist()]
    packed = list(pack(rows, work.tokens, ids_RL.device))

    def run() -> None:
        for each in packed:
            logprob_S, _ = policy.score(each, 1.0)
            (-logprob_S.mean()).backward()
        policy.model.zero_grad(set_to_none=True)

    return run


def _our_update(shape: PretrainedConfig, work: Work, ids_RL: Tensor) -> Pass:
    """One mini-batch update of the trainer: loss, backward pass, and optimizer step on fp32 master weights."""
    policy = random_policy(shape, quickstart_tokens(), ids_RL.device, recompute=work.recompute)
    train = TrainConfig(pack_tokens=work.tokens, samples=work.rows, learning_rate=LEARNING_RATE)
    optimiser = Optimiser(policy.model.named_parameters(), learning_rate=LEARNING_RATE, weight_decay=train.weight_decay)
    learner = Learner(policy, optimiser, AlgorithmConfig(), train, work.row_tokens)
    group = _group(ids_RL.tolist(), -ln(int(shape.vocab_size)))
    return lambda: learner.learn([group], StepRates(LEARNING_RATE), isfinite, recompute=False)


def _group(rows: Sequence[Sequence[int]], logprob: float) -> Group:
    """The rows as samples of one question; all tokens but the first are sampled, with equal logprobs."""
    question = Question("bench", "?", (), "bench")
    trajectories = tuple(
        Trajectory(
            question=question,
            group=0,
            sample=sample,
            step=0,
            segments=(
                Segment(
                    tuple(ids), (False, *[True] * (len(ids) - 1)), (logprob,) * (len(ids) - 1), (0,) * (len(ids) - 1)
                ),
            ),
            turns=(),
            stop=StopReason.OUT_OF_TURNS,
        )
        for sample, ids in enumerate(rows)
    )
    return Group(question, trajectories, tuple(Score(float(each.sample), {}) for each in trajectories))


def table(name: str, work: Work, timings: Sequence[Timing]) -> Table:
    stock = median(timings[0].seconds) if timings[0].seconds else None
    rows: list[tuple[object, ...]] = []
    for timing in timings:
        if timing.failure:
            rows.append((timing.way, timing.failure, *["-"] * 4))
            continue
        middle = median(timing.seconds)
        figures = ("-" if each is None else each for each in (timing.mfu, timing.peak_gib))
        rows.append((timing.way, 1e3 * middle, work.tokens / middle, *figures, stock / middle if stock else "-"))
    recomputed = f", {work.recompute:.0%} of our layers recomputed" if work.recompute else ""
    return Table(
        f"Forward and backward, {name}, {work.rows} rows of {work.row_tokens:,} tokens, every position scored, "
        f"median of {work.repetitions}{recomputed}",
        ("", "ms", "tokens/s", "MFU (6N)", "peak GiB", "times as fast as stock"),
        rows,
    )


@dataclass(frozen=True, slots=True)
class Growth:
    """Additional memory of the head for twice the tokens, and the size of their half-precision logits, in bytes."""

    grown: int
    logits: int

    @property
    def chunked(self) -> bool:
        return self.grown < self.logits

    def describe(self) -> str:
        verdict = "none was allocated" if self.chunked else "ONE MAY HAVE BEEN ALLOCATED"
        return (
            f"Twice the tokens took {self.grown / GIB:.2f} GiB more in the head, forward and backward; a tensor of "
            f"tokens times vocabulary would have taken {self.logits / GIB:.2f} GiB more: {verdict}."
        )


def head_growth(shape: PretrainedConfig, tokens: int) -> Growth | None:
    """Measure how the memory of the language-model head grows with the number of tokens; None on a CPU."""
    device = default_device()
    if device.type != "cuda":
        return None
    vocabulary, width = int(shape.vocab_size), int(shape.hidden_size)
    weight_VW = torch.randn(vocabulary, width, dtype=torch.bfloat16, device=device).mul_(0.02).requires_grad_()
    few, many = (_peak_bytes(weight_VW, count) for count in (tokens, 2 * tokens))
    return Growth(many - few, tokens * vocabulary * weight_VW.element_size())


def _peak_bytes(weight_VW: Tensor, tokens: int) -> int:
    device = weight_VW.device
    hidden_SW = torch.randn(tokens, weight_VW.shape[1], dtype=weight_VW.dtype, device=device, requires_grad=True)
    target_S = torch.randint(len(weight_VW), (tokens,), device=device)
    release_memory(device)
    reset_peak_memory(device)
    before = torch.cuda.memory_allocated(device)
    logprob_S, entropy_S = lm_head.score_tokens(hidden_SW, weight_VW, None, target_S, 1.0)
    (logprob_S.sum() + entropy_S.sum()).backward()
    weight_VW.grad = None
    return torch.cuda.max_memory_allocated(device) - before
