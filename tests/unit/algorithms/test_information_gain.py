"""Information gain against numbers worked by hand, and against a naive computation on random trajectories.

_T scored tokens, _P probes, _C contexts.
"""

import math
import random
import statistics

import pytest
import torch

from sleuth.algorithms.information_gain import Terminal, potentials, turn_gains


def test_potential_is_that_of_the_best_answer() -> None:
    # Context 0: answers with means -2 and -1; context 1: one answer with mean -0.5.
    logprob_T = torch.tensor([-1.0, -3.0, -1.0, -0.25, -0.75])
    probe_T, context_P = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 0, 1])
    assert potentials(logprob_T, probe_T, context_P, "logprob").tolist() == [-1.0, -0.5]
    expected = [math.exp(-1.0), math.exp(-0.5)]
    assert potentials(logprob_T, probe_T, context_P, "probability").tolist() == pytest.approx(expected)


def test_searches_earn_differences_and_the_last_turn_returns_their_sum() -> None:
    """A malformed turn between two searches earns nothing of its own."""
    potential_C = torch.tensor([0.125, 0.5, 0.25])
    assert turn_gains(potential_C, [0, 2], 4, "last").tolist() == [0.375, 0.0, -0.25, 0.0]
    assert turn_gains(potential_C, [0, 2], 4, "zero").tolist() == [0.375, 0.0, -0.25, -0.125]
    assert turn_gains(potential_C, [0, 1], 2, "zero").tolist() == [0.375, -0.375]
    assert turn_gains(potential_C[:1], [], 2, "zero").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("searches", "turns"), [([0], 3), ([0, 1, 2], 3), ([0, 3], 3)])
def test_potentials_that_do_not_fit_are_refused(searches: list[int], turns: int) -> None:
    with pytest.raises(ValueError, match="3 potentials"):
        turn_gains(torch.zeros(3), searches, turns, "zero")


@pytest.mark.parametrize("terminal", ["zero", "last"])
def test_a_thousand_random_trajectories_agree_with_a_naive_computation(terminal: Terminal) -> None:
    dice = random.Random(0)
    for _ in range(1000):
        turns = dice.randrange(1, 8)
        searches = sorted(dice.sample(range(turns), dice.randrange(turns + 1)))
        answers = dice.randrange(1, 4)
        logprobs = [
            [[dice.uniform(-9, 0) for _ in range(dice.randrange(1, 6))] for _ in range(answers)]
            for _ in range(len(searches) + 1)
        ]
        flat = [probe for context in logprobs for probe in context]
        found_C = potentials(
            torch.tensor([value for probe in flat for value in probe], dtype=torch.float64),
            torch.tensor([number for number, probe in enumerate(flat) for _ in probe]),
            torch.tensor([number for number, context in enumerate(logprobs) for _ in context]),
            "probability",
        )
        phi = [max(math.exp(statistics.fmean(probe)) for probe in context) for context in logprobs]
        expected = [0.0] * turns
        for number, turn in enumerate(searches):
            expected[turn] += phi[number + 1] - phi[number]
        if terminal == "zero" and searches:
            expected[-1] += phi[0] - phi[-1]
            assert sum(expected) == pytest.approx(0.0, abs=1e-9)
        assert turn_gains(found_C, searches, turns, terminal).tolist() == pytest.approx(expected, abs=1e-6)
