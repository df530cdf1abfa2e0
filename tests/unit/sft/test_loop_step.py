"""Supervised updates against the weighted mean loss of a reference implementation."""

from collections.abc import Callable

import pytest
import torch

from sleuth.model.packing import row
from sleuth.model.policy import Policy
from sleuth.sft.loop import Learner, evaluate_loss, fit
from sleuth.train.optimiser import Optimiser

TOKENS = [(5, 6, 7, 8), (9, 10, 11)]
WEIGHTS = [(0.0, 1.0, 0.5, 1.0), (0.0, 0.0, 1.0)]
ROWS = [row(ids, weights) for ids, weights in zip(TOKENS, WEIGHTS, strict=True)]


@pytest.mark.parametrize("pack_tokens", [1, 1000])
def test_loss_is_the_weighted_mean_for_any_packing(pack_tokens: int, policy: Callable[..., Policy]) -> None:
    ours, stock = policy(), policy().model
    stock.set_attn_implementation("eager")
    total = 0.0
    with torch.no_grad():
        for ids, weights in zip(TOKENS, WEIGHTS, strict=True):
            logprobs = torch.log_softmax(stock(input_ids=torch.tensor([ids])).logits[0], -1)
            total -= sum(weights[place] * float(logprobs[place - 1, ids[place]]) for place in range(1, len(ids)))
    assert evaluate_loss(ours, ROWS, pack_tokens) == pytest.approx(total / 3.5, rel=1e-5)
    loss, norm = Learner(ours, Optimiser(ours.parameters(), learning_rate=0.1, weight_decay=0.01), pack_tokens).update(
        ROWS, 0.1
    )
    assert loss == pytest.approx(total / 3.5, rel=1e-5)
    assert norm > 0


def test_evaluation_leaves_no_gradients(policy: Callable[..., Policy]) -> None:
    ours = policy()
    evaluate_loss(ours, ROWS, 1000)
    assert all(parameter.grad is None for parameter in ours.model.parameters())


def test_fit_takes_the_given_number_of_steps(policy: Callable[..., Policy]) -> None:
    ours, losses = policy(), list[float]()
    fit(ours, iter(lambda: ROWS, None), steps=20, learning_rate=0.1, on_step=lambda _step, loss: losses.append(loss))
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2
