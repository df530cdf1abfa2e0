"""Supervised updates on packed rows.

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
    """The weighted mean loss."""
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
    # The second moment averages over about fifty steps; the shipped cold start was trained with it.
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
