"""Supervised training: one update on a batch of rows, and the loss of rows that are only measured.

Suffixes: T scored tokens of a pack.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi

import torch
from torch import Tensor

from sleuth.errors import TrainingStopped
from sleuth.model.packing import WEIGHT, Pack, Row, pack
from sleuth.model.policy import Policy
from sleuth.train.optimiser import Optimiser


@dataclass(frozen=True, slots=True)
class Learner:
    """A policy and what moves it."""

    policy: Policy
    optimiser: Optimiser
    pack_tokens: int = 16384
    clip: float = 1.0

    def update(self, rows: Sequence[Row], rate: float) -> tuple[float, float]:
        """One step on a batch; the mean loss of its weighted tokens, and the norm of the gradient."""
        self.optimiser.zero()
        total, loss = _weights(rows), torch.zeros((), device=self.policy.device)
        for packed in pack(rows, self.pack_tokens, self.policy.device):
            value = _summed(self.policy, packed) / total
            value.backward()
            loss += value.detach()
        norm = self.optimiser.step(rate, self.clip)
        if isfinite(norm) and not self.optimiser.finite():
            raise TrainingStopped(f"the weights are not finite after an update at the rate {rate:g}; lower the rate")
        return float(loss), norm


@torch.no_grad()
def measure(policy: Policy, rows: Sequence[Row], pack_tokens: int) -> float:
    """The mean loss of the weighted tokens."""
    packs = pack(rows, pack_tokens, policy.device)
    return sum(float(_summed(policy, packed)) for packed in packs) / _weights(rows)


def fit(
    policy: Policy,
    batches: Iterable[Sequence[Row]],
    *,
    steps: int,
    learning_rate: float,
    done: Callable[[int, float], None] | None = None,
) -> None:
    """One update a batch, `steps` of them: a short warm-up, a cosine down to zero."""
    # A second moment that forgets within fifty steps: the shipped cold start was made by it.
    optimiser = Optimiser(policy.parameters(), learning_rate=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    learning = Learner(policy, optimiser)
    for step, rows in zip(range(steps), batches, strict=False):
        rate = learning_rate * min(1.0, (step + 1) / 50) * 0.5 * (1 + cos(pi * step / steps))
        loss, _ = learning.update(rows, rate)
        if done is not None:
            done(step, loss)


def _summed(policy: Policy, packed: Pack) -> Tensor:
    logprob_T, _ = policy.score(packed, temperature=1.0)
    return -(packed.columns[WEIGHT] * logprob_T).sum()


def _weights(rows: Sequence[Row]) -> float:
    return float(sum(each.columns[WEIGHT].double().sum() for each in rows))
