"""Sampling in PyTorch: the distribution, the logprobs, and no token of zero probability."""

import numpy as np
import pytest
import torch

from sleuth.engines.paged import torch_backend
from sleuth.engines.paged.batch import uniform

LOGITS = torch.tensor([1.5, -2.0, 0.0, 0.7, -0.3, 2.0, -6.0])
ALMOST_ONE = float(np.nextafter(1.0, 0.0))
NEVER = float("-inf")
WHOLE = (0, 1.0, 0.0)
# Probabilities .05 .1 .4 .1 .05 .3
SHARES = torch.tensor([0.05, 0.1, 0.4, 0.1, 0.05, 0.3]).log()


def numbers(seed: int, count: int) -> np.ndarray:
    """The random numbers of one request, one a token."""
    return uniform(np.full(count, seed, dtype=np.uint64), np.arange(count))


def draw(
    logits: torch.Tensor,
    temperature: float,
    numbers: np.ndarray | list[float],
    cut: tuple[float, float, float] = WHOLE,
) -> tuple[list[int], list[float]]:
    """The tokens and logprobs of one distribution at many random numbers."""
    rows = len(numbers)
    settings_M4 = torch.tensor((temperature, *cut)).expand(rows, -1)
    token_M, logprob_M = torch_backend.draw(logits.expand(rows, -1), settings_M4, torch.tensor(np.asarray(numbers)))
    return token_M.tolist(), logprob_M.tolist()


def kept(logits: torch.Tensor, temperature: float, cut: tuple[float, float, float]) -> set[int]:
    """What a grid of numbers draws: every token that is kept and not very unlikely."""
    return set(draw(logits, temperature, np.linspace(0, ALMOST_ONE, 2_000), cut)[0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
def test_many_draws_follow_the_distribution(temperature: float) -> None:
    """Chi-square with 6 degrees of freedom: above 22.46 in one of a thousand."""
    tokens, _ = draw(LOGITS, temperature, numbers(7, 50_000))
    expected = torch.softmax(LOGITS / temperature, -1).double().numpy() * 50_000
    counts = np.bincount(tokens, minlength=7)
    keep = expected > 5
    assert ((counts - expected)[keep] ** 2 / expected[keep]).sum() < 22.46
    assert 0.5 * np.abs(counts - expected).sum() / 50_000 < 0.01


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.8])
def test_a_logprob_is_of_the_whole_vocabulary_at_that_temperature(temperature: float) -> None:
    tokens, logprobs = draw(LOGITS, temperature, numbers(1, 200))
    expected = torch.log_softmax(LOGITS / (temperature or 1.0), -1)[tokens]
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-6)


def test_temperature_zero_takes_the_best() -> None:
    tokens, _ = draw(LOGITS, 0.0, numbers(2, 50))
    assert set(tokens) == {5}


def test_rows_are_sampled_each_by_its_own_settings_and_number() -> None:
    logits = torch.stack([LOGITS, LOGITS.flip(0), LOGITS, LOGITS])
    numbers = torch.tensor([0.3, 0.3, 0.3, 0.9], dtype=torch.float64)
    cuts = [WHOLE, (2, 1.0, 0.0), (3, 0.5, 0.0), (0, 1.0, 0.3)]
    temperatures = [1.0, 1.0, 0.0, 0.5]
    settings = torch.tensor([(warmth, *cut) for warmth, cut in zip(temperatures, cuts, strict=True)])
    tokens, logprobs = torch_backend.draw(logits, settings, numbers)
    for row in range(4):
        (token,), (logprob,) = draw(logits[row], temperatures[row], [float(numbers[row])], cuts[row])
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
            settings = torch.tensor((1.0, *WHOLE)).expand(200, -1)
            token_M, logprob_M = torch_backend.draw(logits, settings, torch.full((200,), number, dtype=torch.float64))
            assert torch.isfinite(logprob_M).all()
            assert ((token_M >= 2) & (token_M < width + 2)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_show_in_the_logprob(temperature: float) -> None:
    _, logprobs = draw(torch.full((7,), float("nan")), temperature, [0.5])
    assert np.isnan(logprobs).all()


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ((1, 1.0, 0.0), {2}),
        ((2, 1.0, 0.0), {2, 5}),
        ((3, 1.0, 0.0), {1, 2, 3, 5}),  # a tie with the third
        ((100, 1.0, 0.0), {0, 1, 2, 3, 4, 5}),
        ((0, 1e-9, 0.0), {2}),
        ((0, 0.39, 0.0), {2}),
        ((0, 0.6, 0.0), {2, 5}),
        ((0, 0.75, 0.0), {1, 2, 3, 5}),
        ((0, 0.92, 0.0), {0, 1, 2, 3, 4, 5}),
        ((2, 0.57, 0.0), {2}),  # .4 of .7 is .571
        ((2, 0.6, 0.0), {2, 5}),
        ((0, 1.0, 0.7), {2, 5}),
        ((0, 1.0, 0.2), {1, 2, 3, 5}),
        ((0, 1.0, 1.0), {2}),
        ((3, 0.99, 0.7), {2, 5}),
    ],
)
def test_truncation_keeps_what_it_says(cut: tuple[float, float, float], expected: set[int]) -> None:
    assert kept(SHARES, 1.0, cut) == expected
    assert kept(SHARES / 2, 0.5, cut) == expected  # the distribution at the temperature is what counts


def test_what_is_kept_keeps_its_proportions_and_its_whole_logprob() -> None:
    tokens, logprobs = draw(SHARES, 1.0, (np.arange(7_000) + 0.5) / 7_000, (2, 1.0, 0.0))
    assert np.bincount(tokens, minlength=6).tolist() == [0, 0, 4_000, 0, 0, 3_000]
    assert logprobs == pytest.approx(SHARES[tokens].tolist(), abs=1e-6)


@pytest.mark.parametrize("cut", [(1, 1.0, 0.0), (0, 0.1, 0.0), (0, 1.0, 1.0)])
def test_a_number_rounded_up_to_one_draws_what_is_kept(cut: tuple[float, float, float]) -> None:
    assert draw(SHARES, 1.0, [1.0, 0.0], cut)[0] == [2, 2]


def test_truncation_leaves_greedy_rows_alone() -> None:
    assert draw(LOGITS, 0.0, [0.9], (3, 0.5, 0.1)) == draw(LOGITS, 0.0, [0.9])


def test_the_lowest_temperatures_take_the_best() -> None:
    assert draw(LOGITS, 1e-38, [0.0, 0.5, ALMOST_ONE]) == ([5, 5, 5], [0.0, 0.0, 0.0])


def test_numbers_depend_on_the_seed_alone() -> None:
    assert numbers(3, 100)[:10].tolist() == numbers(3, 10).tolist()
    assert numbers(3, 10).tolist() != numbers(4, 10).tolist()
    many = numbers(2**64 - 1, 100_000)
    assert ((many >= 0) & (many < 1)).all()
    assert np.histogram(many, 20, (0, 1))[0] == pytest.approx(5000, abs=350)
