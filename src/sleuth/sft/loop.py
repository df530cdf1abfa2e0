"""A course of supervised training: batches in an order drawn by seed, a held-out loss, and the best weights kept."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from sleuth.errors import InputError, TrainingStopped
from sleuth.model.packing import Row, row
from sleuth.model.policy import Policy
from sleuth.model.recompute import recompute_layers
from sleuth.runs.interruption import INTERRUPTION
from sleuth.sft.checkpoint import Checkpoints
from sleuth.sft.settings import SFTConfig
from sleuth.sft.step import Learner, measure
from sleuth.sft.traces import Trace
from sleuth.train.observer import RunObserver
from sleuth.train.optimiser import Optimiser

LINES = 10  # told in the course of training, beside the measurements


@dataclass(frozen=True, slots=True)
class Update:
    """One step: the loss before it, the rate, and the norm of the gradient."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The held-out loss after a step; 0 is before training."""

    step: int
    loss: float


@dataclass(slots=True)
class Course:
    """How training went; `kept` is the step whose weights the policy has at the end."""

    steps: int
    updates: list[Update] = field(default_factory=list)
    held_out: list[Measured] = field(default_factory=list)
    kept: int = 0

    @property
    def best(self) -> Measured:
        return min(self.held_out, key=lambda each: each.loss)

    def worsening(self) -> int:
        """How many measurements lie behind the best."""
        return len(self.held_out) - 1 - self.held_out.index(self.best)

    def line(self) -> str:
        """Where it stands: the loss is the mean of the last updates, since that of one batch says little."""
        newest = [each.loss for each in self.updates[-max(1, self.steps // LINES) :]]
        learned = f"loss {fmean(newest):.4f}" if newest else "before training"
        return f"step {len(self.updates):,} of {self.steps:,}: {learned}"

    def resume(self, step: int, written: Mapping[str, Any]) -> None:
        """Takes over what an interrupted training recorded up to a step."""
        self.updates = [Update(**each) for each in written["losses"] if each["step"] <= step]
        self.held_out = [Measured(**each) for each in written["held_out"] if each["step"] <= step]

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_steps": self.steps,
            "kept_step": self.kept,
            "losses": [asdict(each) for each in self.updates],
            "held_out": [asdict(each) for each in self.held_out],
        }


def apart(traces: Sequence[Trace], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """The rows to learn from and those held out; all traces of a question are on one side."""
    if not share:
        return [row(each.ids_L, each.weights_L) for each in traces], []
    questions = sorted({each.question for each in traces})
    if len(questions) < 2:
        raise InputError("all traces are about one question, so none can be held out; add others, or give --held-out 0")
    random.Random(f"{seed}/held out").shuffle(questions)
    held = set(questions[: min(max(1, round(share * len(questions))), len(questions) - 1)])
    sides: tuple[list[Row], list[Row]] = ([], [])
    for each in traces:
        sides[each.question in held].append(row(each.ids_L, each.weights_L))
    return sides


def batches(lengths: Sequence[int], settings: SFTConfig) -> list[list[int]]:
    """The row numbers of every update, each epoch in an order of its own."""
    if settings.steps is not None:
        return list(islice((batch for epoch in count() for batch in _epoch(lengths, epoch, settings)), settings.steps))
    return [batch for epoch in range(settings.epochs) for batch in _epoch(lengths, epoch, settings)]


def train(
    policy: Policy,
    rows: Sequence[Row],
    held_out: Sequence[Row],
    settings: SFTConfig,
    observer: RunObserver,
    checkpoints: Checkpoints | None = None,
) -> Course:
    """Trains the policy in place; it ends with the weights that did best on the rows held out, or with the last.

    With `checkpoints` it continues from the newest, writes one where it is due, and one before it stops for a signal.
    """
    lengths = [len(each.ids_L) for each in rows]
    planned = batches(lengths, settings)
    every = settings.evaluate_every or len(list(_epoch(lengths, 0, settings)))
    course, best = Course(len(planned)), _Best(policy)
    learning = _learner(policy, settings)
    observer.begin("learning from traces", len(planned))
    if checkpoints is None or not _resume(checkpoints, learning, course, best, observer):
        _measure(course, best, held_out, settings, observer)
    for step, numbers in islice(enumerate(planned, 1), len(course.updates), None):
        _update(learning, [rows[number] for number in numbers], course, settings)
        observer.advance()
        if held_out and (step % every == 0 or step == len(planned)):
            _measure(course, best, held_out, settings, observer)
            if settings.keep == "best" and settings.patience and course.worsening() >= settings.patience:
                observer.log(f"the held-out loss has not fallen since step {course.best.step}: training ends here")
                break
        elif step % max(1, len(planned) // LINES) == 0:
            observer.log(course.line())
        if checkpoints is not None and (INTERRUPTION.signal is not None or checkpoints.due):
            best_step = course.best.step if course.held_out else 0
            checkpoints.save(learning, course.as_json(), step, best_step, best.kept)
            INTERRUPTION.raise_if_interrupted()
    course.kept = course.updates[-1].step
    if held_out and settings.keep == "best" and course.best.step != course.kept:
        best.restore()
        course.kept = course.best.step
    return course


def _resume(checkpoints: Checkpoints, learning: Learner, course: Course, best: "_Best", observer: RunObserver) -> bool:
    """Continues an interrupted training, if there is one."""
    found = checkpoints.restore(learning)
    if found is None:
        return False
    step, written = found
    course.resume(step, written)
    if course.held_out:
        best.kept = checkpoints.best(course.best.step)
    observer.log(f"continuing after update {step:,}, where this training was interrupted")
    observer.advance(step)
    return True


def _epoch(lengths: Sequence[int], epoch: int, settings: SFTConfig) -> Iterator[list[int]]:
    """The batches of one epoch: by number of rows, or by tokens."""
    order = list(range(len(lengths)))
    random.Random(f"{settings.seed}/{epoch}").shuffle(order)
    batch: list[int] = []
    held = 0
    for number in order:
        full = held + lengths[number] > settings.batch_tokens if settings.batch_tokens else False
        if batch and (full or (not settings.batch_tokens and len(batch) == settings.batch_rows)):
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += lengths[number]
    yield batch


def _learner(policy: Policy, settings: SFTConfig) -> Learner:
    recompute_layers(policy.model, settings.recompute)
    optimiser = Optimiser(
        policy.parameters(),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        kind=settings.optimiser,
        offload=settings.offload,
    )
    return Learner(policy, optimiser, settings.pack_tokens, settings.gradient_clip)


def _update(learning: Learner, rows: Sequence[Row], course: Course, settings: SFTConfig) -> None:
    step = len(course.updates)
    rate = settings.rate(step, course.steps)
    loss, norm = learning.update(rows, rate)
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise TrainingStopped(
            f"the loss of step {step + 1} is {loss} and its gradient {norm}; lower --learning-rate, "
            "or look at the traces"
        )
    course.updates.append(Update(step + 1, loss, rate, norm))


def _measure(
    course: Course, best: "_Best", held_out: Sequence[Row], settings: SFTConfig, observer: RunObserver
) -> None:
    """Measures the held-out loss, and keeps the weights where it is the lowest so far."""
    if not held_out:
        return
    step = len(course.updates)
    course.held_out.append(Measured(step, measure(best.policy, held_out, settings.pack_tokens)))
    if settings.keep == "best" and course.best is course.held_out[-1]:
        best.keep()
    observer.log(f"{course.line()}, held out {course.held_out[-1].loss:.4f}")


class _Best:
    """The weights of the best measurement so far, in host memory."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.kept: dict[str, Tensor] = {}

    def keep(self) -> None:
        for name, parameter in self.policy.parameters():
            if name in self.kept:
                self.kept[name].copy_(parameter.detach())
            else:
                self.kept[name] = parameter.detach().to("cpu", copy=True)

    @torch.no_grad()
    def restore(self) -> None:
        for name, parameter in self.policy.parameters():
            parameter.copy_(self.kept[name])
