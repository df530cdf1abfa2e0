"""The knobs of guards and trackers: what has no effect is refused, and what is written down comes back."""

from typing import Any

import pytest
from pydantic import ValidationError

from sleuth.config.guards import WATCHED, GuardsConfig
from sleuth.config.recipe import resolved, restore
from sleuth.config.train import TrackConfig
from sleuth.config.tree import Config

QUESTIONS = {"train": "a.jsonl", "test": "b.jsonl", "corpus": "c.jsonl"}


@pytest.mark.parametrize("name", WATCHED)
def test_the_threshold_of_a_guard_that_is_off_is_refused(name: str) -> None:
    off = {f"{name}_action": "off"}
    with pytest.raises(ValidationError, match=rf"{name} has no effect with guards\.{name}_action = off"):
        GuardsConfig(**off, **{name: getattr(GuardsConfig(), name)})  # type: ignore[arg-type]
    assert GuardsConfig(**off).actions[name] == "off"  # type: ignore[arg-type]


def test_rollbacks_that_nobody_makes_are_refused() -> None:
    warned: dict[str, Any] = {"non_finite": "stop", "malformed_action": "warn", "answerless_action": "warn"}
    with pytest.raises(ValidationError, match="rollback_rate has no effect with no guard whose action is rollback"):
        GuardsConfig(**warned, rollback_rate=0.1)
    with pytest.raises(ValidationError, match="window has no effect with"):
        GuardsConfig(gradient_norm_action="off", likelihood_action="off", window=5)


@pytest.mark.parametrize("name", ["entropy_action", "likelihood_action", "parity_action"])
def test_a_step_that_is_made_cannot_be_skipped(name: str) -> None:
    with pytest.raises(ValidationError, match="Input should be 'off', 'warn', 'rollback' or 'stop'"):
        GuardsConfig(**{name: "skip"})  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["warn", "off"])
def test_what_is_no_number_is_never_let_pass(action: Any) -> None:
    with pytest.raises(ValidationError, match="Input should be 'skip', 'rollback' or 'stop'"):
        GuardsConfig(non_finite=action)


def test_trackers_are_named_by_commas() -> None:
    assert TrackConfig().trackers == ()
    assert TrackConfig(to="wandb, mlflow", project="mine").trackers == ("wandb", "mlflow")


@pytest.mark.parametrize(
    ("knobs", "refusal"),
    [
        ({"to": "wandb,neptune"}, "to = 'neptune' .*wandb, tensorboard"),
        ({"to": "wandb,wandb"}, "names a tracker twice"),
        ({"project": "mine"}, "project has no effect with track.to = ''"),
        ({"to": "tensorboard", "project": "mine"}, "project has no effect with track.to = 'tensorboard'"),
    ],
)
def test_trackers_that_cannot_be_are_refused(knobs: dict[str, str], refusal: str) -> None:
    with pytest.raises(ValidationError, match=refusal):
        TrackConfig(**knobs)


def test_a_run_remembers_them() -> None:
    config = Config.model_validate(
        {"data": QUESTIONS, "guards": {"entropy_action": "off", "malformed": 0.25}, "track": {"to": "tensorboard"}}
    )
    assert restore(resolved(config)) == config
