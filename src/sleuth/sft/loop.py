"""Supervised fine-tuning loop: shuffled batches, held-out loss, early stopping, best weights and checkpoints.

Suffixes: T scored tokens of a pack.
"""

import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from math import cos, isfinite, pi
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sleuth.errors import InputError, TrainingStopped
from sleuth.model.packing import WEIGHT, Pack, Row, pack, row
from sleuth.model.policy import HostBuffers, Policy
from sleuth.model.recompute import recompute_layers
from sleuth.runs import checksums
from sleuth.runs.atomic import atomic_write
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run, step_of
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import Trace
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress
from sleuth.train.observer import RunObserver
from sleuth.train.optimiser import Optimiser

LOG_LINES = 10  # log lines per training run, besides evaluations
HISTORY = "course.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser step: the loss before it, the learning rate and the gradient norm."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Held-out loss after a step; step 0 is before training."""

    step: int
    loss: float


@dataclass(slots=True)
class History:
    """Losses of a training run; `kept` is the step whose weights the policy has at the end."""

    steps: int
    updates: list[Update] = field(default_factory=list)
    held_out: list[HeldOutLoss] = field(default_factory=list)
    kept: int = 0

    @property
    def best(self) -> HeldOutLoss:
        return min(self.held_out, key=lambda each: each.loss)

    def log_line(self) -> str:
        """Format the progress, with the mean loss of the latest updates."""
        latest = [each.loss for each in self.updates[-max(1, self.steps // LOG_LINES) :]]
        loss = f"loss {fmean(latest):.4f}" if latest else "before training"
        return f"step {len(self.updates):,} of {self.steps:,}: {loss}"

    def restore(self, step: int, saved: Mapping[str, Any]) -> None:
        """Restore the history of an interrupted training run up to a step."""
        self.updates = [Update(**each) for each in saved["losses"] if each["step"] <= step]
        self.held_out = [HeldOutLoss(**each) for each in saved["held_out"] if each["step"] <= step]

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_steps": self.steps,
            "kept_step": self.kept,
            "losses": [asdict(each) for each in self.updates],
            "held_out": [asdict(each) for each in self.held_out],
        }


@dataclass(frozen=True, slots=True)
class Learner:
    """A policy with its optimiser."""

    policy: Policy
    optimiser: Optimiser
    pack_tokens: int = 16384
    clip: float = 1.0

    def update(self, rows: Sequence[Row], learning_rate: float) -> tuple[float, float]:
        """Take one optimiser step on a batch; return the weighted mean loss and the gradient norm."""
        self.optimiser.zero()
        total, loss = _total_weight(rows), torch.zeros((), device=self.policy.device)
        for packed in pack(rows, self.pack_tokens, self.policy.device):
            value = _summed_loss(self.policy, packed) / total
            value.backward()
            loss += value.detach()
        norm = self.optimiser.step(learning_rate, self.clip)
        if isfinite(norm) and not self.optimiser.finite():
            raise TrainingStopped(
                f"the weights are not finite after an update with learning rate {learning_rate:g}; lower it"
            )
        return float(loss), norm


@torch.no_grad()
def evaluate_loss(policy: Policy, rows: Sequence[Row], pack_tokens: int) -> float:
    """Compute the weighted mean loss of the rows."""
    packs = pack(rows, pack_tokens, policy.device)
    return sum(float(_summed_loss(policy, packed)) for packed in packs) / _total_weight(rows)


def fit(
    policy: Policy,
    batches: Iterable[Sequence[Row]],
    *,
    steps: int,
    learning_rate: float,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train for `steps` updates, one batch each, with a short warm-up and cosine decay to zero."""
    # beta2 averages the second moment over about fifty steps; the shipped cold start was trained with this value.
    optimiser = Optimiser(policy.parameters(), learning_rate=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    learner = Learner(policy, optimiser)
    for step, rows in zip(range(steps), batches, strict=False):
        rate = learning_rate * min(1.0, (step + 1) / 50) * 0.5 * (1 + cos(pi * step / steps))
        loss, _ = learner.update(rows, rate)
        if on_step is not None:
            on_step(step, loss)


def _summed_loss(policy: Policy, packed: Pack) -> Tensor:
    logprob_T, _ = policy.score(packed, temperature=1.0)
    return -(packed.columns[WEIGHT] * logprob_T).sum()


def _total_weight(rows: Sequence[Row]) -> float:
    return float(sum(row.columns[WEIGHT].double().sum() for row in rows))


@dataclass(slots=True)
class Checkpoints:
    """Checkpoints of an unfinished training run in its output folder, saved every `minutes` minutes."""

    folder: Path
    minutes: float
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        return time.monotonic() - self._saved_at >= 60 * self.minutes

    def save(
        self, learner: Learner, history: Mapping[str, Any], step: int, best_step: int, best: Mapping[str, Tensor]
    ) -> None:
        """Save the state after `step` updates, and the weights of the best step."""
        run, best_path = Run(self.folder), self.best_path(best_step)
        # Written before the checkpoint, which needs them and is renamed into place last.
        run.write_json(HISTORY, history)
        if best and not best_path.exists():
            with atomic_write(best_path) as path:
                save_file({name: tensor.contiguous() for name, tensor in best.items()}, path)
        taken = checkpoint.snapshot(learner.policy, learner.optimiser, Progress(step), HostBuffers())
        with atomic_write(run.checkpoint(step)) as folder:
            checkpoint.write_weights(folder, taken)
            checkpoint.write_shards(folder, taken, None)
            checkpoint.write_checksums(folder)
        run.prune(keep=1)
        for path in self.folder.glob("best-*.safetensors"):
            if path != best_path:
                path.unlink()
        self._saved_at = time.monotonic()

    def restore(self, learner: Learner) -> tuple[int, Mapping[str, Any]] | None:
        """Load the latest checkpoint; return its step and the saved history, or None if there is no checkpoint."""
        run = Run(self.folder)
        latest = run.latest() if (self.folder / CHECKPOINTS).is_dir() else None
        history = run.read_json(HISTORY)
        if latest is None or history is None:
            return None
        checksums.verify_checkpoint(latest, resuming=True)
        checkpoint.restore(latest, learner.policy, learner.optimiser)
        return step_of(latest), history

    def remove(self) -> None:
        """Remove everything but the model from the folder."""
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        for path in (self.folder / HISTORY, *self.folder.glob("best-*.safetensors")):
            path.unlink(missing_ok=True)

    def best_path(self, step: int) -> Path:
        """Return the path of the weights file of the best step."""
        return self.folder / f"best-{step}.safetensors"


def split_held_out(traces: Sequence[Trace], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Split traces into training and held-out rows; all traces of a question stay in the same split."""
    if not share:
        return [row(each.ids_L, each.weights_L) for each in traces], []
    questions = sorted({each.question for each in traces})
    if len(questions) < 2:
        raise InputError("all traces are about one question, so none can be held out; add others, or give --held-out 0")
    random.Random(f"{seed}/held out").shuffle(questions)
    held_out = set(questions[: min(max(1, round(share * len(questions))), len(questions) - 1)])
    sides: tuple[list[Row], list[Row]] = ([], [])
    for each in traces:
        sides[each.question in held_out].append(row(each.ids_L, each.weights_L))
    return sides


def plan_batches(lengths: Sequence[int], settings: SFTConfig) -> list[list[int]]:
    """Return the row numbers of every update; each epoch is reshuffled."""
    epochs = range(settings.epochs) if settings.steps is None else count()
    return list(
        islice((batch for epoch in epochs for batch in _epoch_batches(lengths, epoch, settings)), settings.steps)
    )


def train(
    policy: Policy,
    rows: Sequence[Row],
    held_out: Sequence[Row],
    settings: SFTConfig,
    observer: RunObserver,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Train the policy in place; at the end it has the best or the last weights, as configured.

    With `checkpoints`, training resumes from the latest one, saves when due, and saves before it stops for a signal.
    """
    training = _Training(policy, rows, held_out, settings, observer)
    history, planned = training.history, training.batches
    observer.begin("learning from traces", len(planned))
    if checkpoints is None or not training.resume(checkpoints):
        training.evaluate()
    for step, numbers in islice(enumerate(planned, 1), len(history.updates), None):
        training.update(numbers)
        observer.advance()
        if held_out and (step % training.evaluate_every == 0 or step == len(planned)):
            training.evaluate()
            since_best = len(history.held_out) - 1 - history.held_out.index(history.best)
            if settings.keep == "best" and 0 < settings.patience <= since_best:
                observer.log(f"early stopping: the held-out loss has not improved since step {history.best.step}")
                break
        elif step % max(1, len(planned) // LOG_LINES) == 0:
            observer.log(history.log_line())
        if checkpoints is not None and (INTERRUPTION.signal is not None or checkpoints.due):
            best_step = history.best.step if history.held_out else 0
            checkpoints.save(training.learner, history.as_json(), step, best_step, training.best_weights)
            INTERRUPTION.raise_if_interrupted()
    history.kept = history.updates[-1].step
    if held_out and settings.keep == "best" and history.best.step != history.kept:
        with torch.no_grad():
            for name, parameter in policy.parameters():
                parameter.copy_(training.best_weights[name])
        history.kept = history.best.step
    return history


class _Training:
    """State of a training run: the learner, the history, and the best weights in host memory."""

    def __init__(
        self, policy: Policy, rows: Sequence[Row], held_out: Sequence[Row], settings: SFTConfig, observer: RunObserver
    ) -> None:
        self._rows, self._held_out, self._settings, self._observer = rows, held_out, settings, observer
        lengths = [len(each.ids_L) for each in rows]
        self.batches = plan_batches(lengths, settings)
        self.evaluate_every = settings.evaluate_every or len(list(_epoch_batches(lengths, 0, settings)))
        self.history = History(len(self.batches))
        self.best_weights: dict[str, Tensor] = {}
        recompute_layers(policy.model, settings.recompute)
        optimiser = Optimiser(
            policy.parameters(),
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            kind=settings.optimiser,
            offload=settings.offload,
        )
        self.learner = Learner(policy, optimiser, settings.pack_tokens, settings.gradient_clip)

    def resume(self, checkpoints: Checkpoints) -> bool:
        """Resume an interrupted training run, if there is one; return whether there was."""
        found = checkpoints.restore(self.learner)
        if found is None:
            return False
        step, saved = found
        self.history.restore(step, saved)
        if self.history.held_out and (path := checkpoints.best_path(self.history.best.step)).exists():
            self.best_weights = load_file(path)
        self._observer.log(f"resuming after update {step:,}")
        self._observer.advance(step)
        return True

    def update(self, numbers: Sequence[int]) -> None:
        step = len(self.history.updates)
        rate = self._settings.rate(step, self.history.steps)
        loss, norm = self.learner.update([self._rows[number] for number in numbers], rate)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainingStopped(
                f"step {step + 1} has loss {loss} and gradient norm {norm}; lower --learning-rate, or check the traces"
            )
        self.history.updates.append(Update(step + 1, loss, rate, norm))

    def evaluate(self) -> None:
        """Measure the held-out loss, and copy the weights if it is the lowest so far."""
        if not self._held_out:
            return
        history, policy = self.history, self.learner.policy
        loss = evaluate_loss(policy, self._held_out, self._settings.pack_tokens)
        history.held_out.append(HeldOutLoss(len(history.updates), loss))
        if self._settings.keep == "best" and history.best is history.held_out[-1]:
            for name, parameter in policy.parameters():
                if name not in self.best_weights:
                    self.best_weights[name] = torch.empty_like(parameter.detach(), device="cpu")
                self.best_weights[name].copy_(parameter.detach())
        self._observer.log(f"{history.log_line()}, held out {loss:.4f}")


def _epoch_batches(lengths: Sequence[int], epoch: int, settings: SFTConfig) -> Iterator[list[int]]:
    """Yield the batches of one epoch, limited by rows or by tokens."""
    order = list(range(len(lengths)))
    random.Random(f"{settings.seed}/{epoch}").shuffle(order)
    batch: list[int] = []
    tokens = 0
    for number in order:
        limit = settings.batch_tokens
        if batch and (tokens + lengths[number] > limit if limit else len(batch) == settings.batch_rows):
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    yield batch
