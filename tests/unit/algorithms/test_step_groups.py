"""Step groups against numbers worked by hand, and against a naive computation on random turns.

_M turns.
"""

import random
import statistics

import pytest
import torch

from sleuth.algorithms.advantage import ADVANTAGES
from sleuth.algorithms.step_groups import step_advantages

# State 5: returns 1, 0, 0.5; state 2: 1 and 1; state 9: one turn.
RETURNS_M = torch.tensor([1.0, 1.0, 0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
STATES_M = torch.tensor([5, 2, 5, 9, 5, 2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [0.999998, 0.0, -0.999998, 0.0, 0.0, 0.0]),  # std 0.5
        ("dr_grpo", [0.5, 0.0, -0.5, 0.0, 0.0, 0.0]),
        ("rloo", [0.75, 0.0, -0.75, 0.0, 0.0, 0.0]),
    ],
)
def test_turns_are_compared_within_their_state(name: str, expected: list[float]) -> None:
    found_M = step_advantages(RETURNS_M, STATES_M, ADVANTAGES[name])
    assert found_M.tolist() == pytest.approx(expected, abs=1e-6)


def test_states_of_one_turn_each_compare_nothing() -> None:
    assert step_advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), ADVANTAGES["grpo"]).tolist() == [0.0, 0.0]


def test_a_thousand_random_batches_agree_with_a_naive_computation() -> None:
    dice = random.Random(0)
    for _ in range(1000):
        count = dice.randrange(1, 20)
        states = [dice.randrange(6) for _ in range(count)]
        returns = [dice.choice([0.0, 1.0, dice.uniform(-2, 2)]) for _ in range(count)]
        expected = []
        for state, value in zip(states, returns, strict=True):
            members = [other for key, other in zip(states, returns, strict=True) if key == state]
            deviation = value - statistics.fmean(members)
            expected.append(deviation / (statistics.stdev(members) + 1e-6) if len(members) > 1 else 0.0)
        values_M = torch.tensor(returns, dtype=torch.float64)
        assert step_advantages(values_M, torch.tensor(states), ADVANTAGES["grpo"]).tolist() == pytest.approx(
            expected, abs=1e-6
        )
