"""Supervised training on demonstrations."""

from collections.abc import Callable, Iterable, Sequence
from math import cos, pi

import torch

from sleuth.train.packing import Row, pack
from sleuth.train.policy import Policy


def fit(
    policy: Policy,
    batches: Iterable[Sequence[Row]],
    *,
    steps: int,
    learning_rate: float,
    pack_tokens: int = 16384,
    done: Callable[[int, float], None] | None = None,
) -> None:
    """One update a batch, `steps` of them: AdamW, a short warm-up, a cosine down to zero."""
    optimiser = torch.optim.AdamW(policy.model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step, rows in zip(range(steps), batches, strict=False):
        for setting in optimiser.param_groups:
            setting["lr"] = learning_rate * min(1.0, (step + 1) / 50) * 0.5 * (1 + cos(pi * step / steps))
        loss = update(policy, optimiser, rows, pack_tokens)
        if done is not None:
            done(step, loss)


def update(policy: Policy, optimiser: torch.optim.Optimizer, rows: Sequence[Row], pack_tokens: int) -> float:
    """One step on a batch; returns the mean loss of its weighted tokens."""
    total = sum(weight for row in rows for weight in row.weights)
    optimiser.zero_grad(set_to_none=True)
    loss = 0.0
    for packed in pack(rows, pack_tokens, policy.device):
        logprob_T, _ = policy.score(packed, temperature=1.0)
        value = -(packed.weight_T * logprob_T).sum() / total
        value.backward()
        loss += float(value.detach())
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimiser.step()
    return loss
