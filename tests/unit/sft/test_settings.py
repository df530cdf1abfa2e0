"""The settings of a cold start: rates, defaults, and what contradicts itself."""

import pytest

from sleuth.errors import ConfigError
from sleuth.sft.settings import SFTConfig, explained, settled


@pytest.mark.parametrize(
    ("decay", "rates"),
    [("linear", [0.5, 0.75, 0.5, 0.25]), ("none", [0.5, 1, 1, 1]), ("cosine", [0.5, 0.853553, 0.5, 0.146447])],
)
def test_rate_rises_and_falls(decay: str, rates: list[float]) -> None:
    settings = settled({"learning_rate": 1.0, "warmup": 0.5, "decay": decay})
    assert [settings.rate(step, 4) for step in range(4)] == pytest.approx(rates, abs=1e-6)


def test_rate_without_warm_up_begins_at_its_highest() -> None:
    assert SFTConfig(warmup=0.0, learning_rate=0.25).rate(0, 10) == 0.25


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epochs": 2, "steps": 10}, "--epochs has no effect with --steps; remove it"),
        ({"batch_rows": 2, "batch_tokens": 8192}, "--batch-rows has no effect with --batch-tokens; remove it"),
        ({"held_out": 0.0, "patience": 1}, "--patience has no effect with --held-out 0; remove it"),
        ({"held_out": 0.0, "keep": "best"}, "--keep has no effect with --held-out 0; remove it"),
        ({"keep": "last", "patience": 3}, "--patience has no effect with --keep last; remove it"),
        ({"batch_tokens": 100}, "--batch-tokens 100 is less than --row-tokens 4096; raise it, or lower that"),
        ({"decay": "sudden"}, "--decay sudden should be 'cosine', 'linear' or 'none'"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0 should be greater than 0"),
        ({"held_out": 1.0}, "--held-out 1.0 should be less than 1"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_the_command(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(given)
    assert str(caught.value) == sentence


def test_what_was_not_given_is_the_default() -> None:
    assert settled({"epochs": None, "seed": 3}) == SFTConfig(seed=3)


def test_help_tells_the_default() -> None:
    assert explained("epochs") == "times every trace is seen; default 3"
    assert explained("steps") == "updates, instead of epochs"
