"""Supervised training against the mean of the weighted tokens."""

from collections.abc import Callable

import pytest
import torch

from sleuth.train import sft
from sleuth.train.packing import Row
from sleuth.train.policy import Policy

ROWS = [Row((5, 6, 7, 8), (0.0, 1.0, 0.5, 1.0)), Row((9, 10, 11), (0.0, 0.0, 1.0))]


@pytest.mark.parametrize("pack_tokens", [1, 1000])
def test_loss_is_the_weighted_mean_however_it_is_packed(pack_tokens: int, policy: Callable[..., Policy]) -> None:
    ours, stock = policy(), policy().model
    stock.set_attn_implementation("eager")
    total = 0.0
    with torch.no_grad():
        for row in ROWS:
            logprobs = torch.log_softmax(stock(input_ids=torch.tensor([row.ids])).logits[0], -1)
            total -= sum(
                weight * float(logprobs[place - 1, row.ids[place]])
                for place, weight in enumerate(row.weights)
                if weight
            )
    optimiser = torch.optim.SGD(ours.model.parameters(), lr=0.1)
    assert sft.update(ours, optimiser, ROWS, pack_tokens) == pytest.approx(total / 3.5, rel=1e-5)


def test_fit_learns_the_rows_in_as_many_steps_as_asked(policy: Callable[..., Policy]) -> None:
    ours, losses = policy(), list[float]()
    sft.fit(ours, iter(lambda: ROWS, None), steps=20, learning_rate=0.1, done=lambda _step, loss: losses.append(loss))
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2
