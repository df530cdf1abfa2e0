"""Sampling: right distribution, right logprob, no token without probability."""

import numpy as np
import pytest
import torch

from sleuth.engines.paged.sampler import sample, uniforms

LOGITS = torch.tensor([1.5, -2.0, 0.0, 0.7, -0.3, 2.0, -6.0])
ALMOST_ONE = float(np.nextafter(1.0, 0.0))
NEVER = float("-inf")


def draw(logits: torch.Tensor, temperature: float, numbers: np.ndarray | list[float]) -> tuple[list[int], list[float]]:
    """The tokens and logprobs of one distribution at many random numbers."""
    rows = len(numbers)
    uniform_R = torch.tensor(np.asarray(numbers))
    token_R, logprob_R = sample(logits.expand(rows, -1), torch.full((rows,), temperature), uniform_R)
    return token_R.tolist(), logprob_R.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
def test_many_draws_follow_the_distribution(temperature: float) -> None:
    """Chi-square with 6 degrees of freedom: above 22.46 in one of a thousand."""
    tokens, _ = draw(LOGITS, temperature, uniforms(7, 50_000))
    expected = torch.softmax(LOGITS / temperature, -1).double().numpy() * 50_000
    counts = np.bincount(tokens, minlength=7)
    keep = expected > 5
    assert ((counts - expected)[keep] ** 2 / expected[keep]).sum() < 22.46
    assert 0.5 * np.abs(counts - expected).sum() / 50_000 < 0.01


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.8])
def test_a_logprob_is_of_the_whole_vocabulary_at_that_temperature(temperature: float) -> None:
    tokens, logprobs = draw(LOGITS, temperature, uniforms(1, 200))
    expected = torch.log_softmax(LOGITS / (temperature or 1.0), -1)[tokens]
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-6)


def test_temperature_zero_takes_the_best() -> None:
    tokens, _ = draw(LOGITS, 0.0, uniforms(2, 50))
    assert set(tokens) == {5}


def test_rows_are_sampled_each_by_its_own_temperature_and_number() -> None:
    logits = torch.stack([LOGITS, LOGITS.flip(0), LOGITS, LOGITS])
    numbers = torch.tensor([0.3, 0.3, 0.3, 0.9], dtype=torch.float64)
    temperatures = torch.tensor([1.0, 1.0, 0.0, 0.5])
    tokens, logprobs = sample(logits, temperatures, numbers)
    for row in range(4):
        (token,), (logprob,) = draw(logits[row], float(temperatures[row]), [float(numbers[row])])
        assert int(tokens[row]) == token
        assert float(logprobs[row]) == pytest.approx(logprob)


@pytest.mark.parametrize("number", [0.0, 0.25, 0.999999, ALMOST_ONE])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_certain_token_is_always_drawn(number: float, place: int) -> None:
    logits = torch.full((7,), NEVER)
    logits[place] = 0.3
    assert draw(logits, 1.0, [number]) == ([place], [0.0])


def test_the_ends_of_the_distribution() -> None:
    assert draw(LOGITS, 1.0, [0.0])[0] == [0]
    assert draw(LOGITS, 1.0, [ALMOST_ONE])[0] == [6]


def test_tokens_without_probability_are_never_drawn() -> None:
    """Also where the total is a little more than 1 and the number rounds up to it."""
    dice = torch.Generator().manual_seed(0)
    for width in (3, 50, 300):
        inner = torch.randn(200, width, generator=dice)
        never = torch.full((200, 2), NEVER)
        logits = torch.cat([never, inner, never], 1)
        for number in (0.0, 1e-300, 0.999999, ALMOST_ONE):
            token_R, logprob_R = sample(logits, torch.ones(200), torch.full((200,), number, dtype=torch.float64))
            assert torch.isfinite(logprob_R).all()
            assert ((token_R >= 2) & (token_R < width + 2)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_show_in_the_logprob(temperature: float) -> None:
    _, logprobs = draw(torch.full((7,), float("nan")), temperature, [0.5])
    assert np.isnan(logprobs).all()


def test_numbers_depend_on_the_seed_alone() -> None:
    assert uniforms(3, 100)[:10].tolist() == uniforms(3, 10).tolist()
    assert uniforms(3, 10).tolist() != uniforms(4, 10).tolist()
    numbers = uniforms(2**64 - 1, 1000)
    assert ((numbers >= 0) & (numbers < 1)).all()
