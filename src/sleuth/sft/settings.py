"""Every setting of `sleuth sft`, declared once: the options of the command, and what sft.json says."""

from collections.abc import Mapping
from math import cos, pi
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from sleuth.config.section import (
    MAX_FLOAT,
    EpisodeCount,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    Section,
    Seed,
    TokenCount,
)
from sleuth.errors import ConfigError


class SFTConfig(Section):
    """How traces are read, and how a model learns from them."""

    epochs: Annotated[int, Field(gt=0, le=10_000, description="times every trace is seen")] = 3
    steps: Annotated[int | None, Field(gt=0, le=10_000_000, description="updates, instead of epochs")] = None
    batch_rows: Annotated[EpisodeCount, Field(description="traces an update")] = 32
    batch_tokens: Annotated[TokenCount | None, Field(description="tokens an update at most, instead of traces")] = None
    learning_rate: Annotated[PositiveFloat, Field(description="of AdamW, at its highest")] = 1e-5
    warmup: Annotated[Fraction, Field(description="share of the updates over which the rate rises")] = 0.03
    decay: Annotated[
        Literal["cosine", "linear", "none"], Field(description="how the rate falls to zero towards the last update")
    ] = "cosine"
    weight_decay: Annotated[float, Field(ge=0, le=MAX_FLOAT, description="of AdamW")] = 0.01
    optimiser: Annotated[Literal["adamw", "adamw8bit"], Field(description="adamw8bit keeps its moments in 8 bits")] = (
        "adamw"
    )
    offload: Annotated[bool, Field(description="masters and moments of the optimiser in host memory")] = False
    recompute: Annotated[
        Fraction, Field(description="share of the layers whose states are computed again backwards, to save memory")
    ] = 0.0
    gradient_clip: Annotated[float, Field(gt=0, le=1e12, description="norm the gradient is scaled down to")] = 1.0
    held_out: Annotated[
        float, Field(ge=0, lt=1, description="share of the questions that is only measured; 0 for none")
    ] = 0.05
    evaluate_every: Annotated[
        NonNegativeInt, Field(description="updates between measurements of the held-out loss; 0: after each epoch")
    ] = 0
    patience: Annotated[
        NonNegativeInt,
        Field(description="measurements without a better one after which it ends; 0: it never ends early"),
    ] = 2
    keep: Annotated[
        Literal["best", "last"],
        Field(
            description="whose weights are kept: of the lowest held-out loss, or of the last update, however it does"
        ),
    ] = "best"
    row_tokens: Annotated[TokenCount, Field(description="tokens of a trace at most")] = 4096
    overlong: Annotated[Literal["drop", "cut"], Field(description="what is done with longer ones")] = "drop"
    protocol: Annotated[
        str, Field(description="the grammar: tags, whose observations stand in the assistant's text, or tools")
    ] = "tags"
    observation_tokens: Annotated[
        TokenCount, Field(description="tokens of one such observation at most, cut as the agent cuts them")
    ] = 500
    observation_weight: Annotated[
        Fraction,
        Field(description="weight in the loss of what the search engine showed; 1 is as the model's own words"),
    ] = 0.0
    min_reward: Annotated[
        float | None, Field(description="trajectories that were paid less are left out; absent: all are taken")
    ] = None
    pack_tokens: Annotated[TokenCount, Field(description="tokens of one packed forward pass")] = 16384
    save_minutes: Annotated[
        float,
        Field(ge=0, le=MAX_FLOAT, description="minutes between checkpoints, from which the same command continues"),
    ] = 10.0
    seed: Annotated[Seed, Field(description="of the order of the traces, and of what is held out")] = 0

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.steps is not None:
            self._reject_unused("--steps", "epochs")
        if self.batch_tokens is not None:
            self._reject_unused("--batch-tokens", "batch_rows")
        if not self.held_out:
            self._reject_unused("--held-out 0", "evaluate_every", "patience", "keep")
        if self.keep == "last":
            self._reject_unused("--keep last", "patience")
        if self.batch_tokens is not None and self.batch_tokens < self.row_tokens:
            raise ValueError(
                f"batch_tokens {self.batch_tokens} is less than row_tokens {self.row_tokens}; raise it, or lower that"
            )
        return self

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of an update, counted from 0."""
        rising = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        match self.decay:
            case "cosine":
                falling = 0.5 * (1 + cos(pi * step / steps))
            case "linear":
                falling = 1 - step / steps
            case "none":
                falling = 1.0
        return self.learning_rate * rising * falling


def settled(given: Mapping[str, object]) -> SFTConfig:
    """The settings with what was given in the place of defaults; the first that is wrong is a ConfigError."""
    try:
        return SFTConfig.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            raise ConfigError(_as_options(str(first["ctx"]["error"]))) from error
        (name,) = first["loc"]
        expectation = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{option(str(name))} {first['input']} should be {expectation}") from error


def option(name: str) -> str:
    """A setting as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def explained(name: str) -> str:
    """The help of a setting, with its default."""
    field = SFTConfig.model_fields[name]
    return str(field.description) if field.default is None else f"{field.description}; default {field.default}"


def _as_options(sentence: str) -> str:
    """A sentence of a validator with the settings in it written as options."""
    return " ".join(option(word) if word in SFTConfig.model_fields else word for word in sentence.split(" "))
