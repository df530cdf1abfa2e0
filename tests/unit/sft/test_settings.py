"""Settings of a cold start: learning rates, defaults and contradictions."""

import pytest

from sleuth.errors import ConfigError
from sleuth.sft.settings import SFTConfig, option_help, parse_options


@pytest.mark.parametrize(
    ("decay", "rates"),
    [("linear", [0.5, 0.75, 0.5, 0.25]), ("none", [0.5, 1, 1, 1]), ("cosine", [0.5, 0.853553, 0.5, 0.146447])],
)
def test_rate_rises_and_falls(decay: str, rates: list[float]) -> None:
    settings = parse_options({"learning_rate": 1.0, "warmup": 0.5, "decay": decay})
    assert [settings.rate(step, 4) for step in range(4)] == pytest.approx(rates, abs=1e-6)


def test_rate_without_warmup_starts_at_its_peak() -> None:
    assert SFTConfig(warmup=0.0, learning_rate=0.25).rate(0, 10) == 0.25


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"epochs": 2, "steps": 10}, ["--epochs", "--steps"]),
        ({"batch_rows": 2, "batch_tokens": 8192}, ["--batch-rows", "--batch-tokens"]),
        ({"held_out": 0.0, "patience": 1}, ["--patience", "--held-out 0"]),
        ({"held_out": 0.0, "keep": "best"}, ["--keep", "--held-out 0"]),
        ({"keep": "last", "patience": 3}, ["--patience", "--keep last"]),
        ({"batch_tokens": 100}, ["--batch-tokens 100", "--row-tokens 4096"]),
        ({"decay": "sudden"}, ["--decay sudden", "cosine", "linear", "none"]),
        ({"learning_rate": -1.0}, ["--learning-rate -1.0", "greater than 0"]),
        ({"held_out": 1.0}, ["--held-out 1.0", "less than 1"]),
    ],
)
def test_invalid_options(options: dict[str, object], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(options)
    assert all(fact in str(caught.value) for fact in facts)


def test_missing_options_have_defaults() -> None:
    assert parse_options({"epochs": None, "seed": 3}) == SFTConfig(seed=3)


def test_help_includes_the_default() -> None:
    assert option_help("epochs").endswith("; default 3")
    assert "default" not in option_help("steps")
