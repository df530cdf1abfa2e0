"""Settings of `sleuth sft`, declared once: the options of the command and the record in sft.json."""

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
    """Settings for reading traces and for supervised fine-tuning on them."""

    epochs: Annotated[int, Field(gt=0, le=10_000, description="passes over the traces")] = 3
    steps: Annotated[int | None, Field(gt=0, le=10_000_000, description="updates, instead of epochs")] = None
    batch_rows: Annotated[EpisodeCount, Field(description="traces per update")] = 32
    batch_tokens: Annotated[TokenCount | None, Field(description="maximum tokens per update, instead of traces")] = None
    learning_rate: Annotated[PositiveFloat, Field(description="peak learning rate of AdamW")] = 1e-5
    warmup: Annotated[Fraction, Field(description="fraction of updates with linear warm-up")] = 0.03
    decay: Annotated[
        Literal["cosine", "linear", "none"], Field(description="decay of the learning rate to zero at the last update")
    ] = "cosine"
    weight_decay: Annotated[float, Field(ge=0, le=MAX_FLOAT, description="weight decay of AdamW")] = 0.01
    optimiser: Annotated[Literal["adamw", "adamw8bit"], Field(description="adamw8bit stores the moments in 8 bits")] = (
        "adamw"
    )
    offload: Annotated[bool, Field(description="keep master weights and moments in host memory")] = False
    recompute: Annotated[
        Fraction, Field(description="fraction of layers with activation checkpointing, to save memory")
    ] = 0.0
    gradient_clip: Annotated[float, Field(gt=0, le=1e12, description="maximum gradient norm")] = 1.0
    held_out: Annotated[
        float, Field(ge=0, lt=1, description="fraction of questions held out to measure the loss; 0 for none")
    ] = 0.05
    evaluate_every: Annotated[
        NonNegativeInt, Field(description="updates between evaluations of the held-out loss; 0: after each epoch")
    ] = 0
    patience: Annotated[
        NonNegativeInt, Field(description="evaluations without improvement before early stopping; 0: never stop early")
    ] = 2
    keep: Annotated[
        Literal["best", "last"],
        Field(description="weights to keep: those with the lowest held-out loss, or those of the last update"),
    ] = "best"
    row_tokens: Annotated[TokenCount, Field(description="maximum tokens per trace")] = 4096
    overlong: Annotated[Literal["drop", "cut"], Field(description="drop or truncate longer traces")] = "drop"
    protocol: Annotated[
        str, Field(description="agent protocol: tags, with observations in the assistant's text, or tools")
    ] = "tags"
    observation_tokens: Annotated[
        TokenCount, Field(description="maximum tokens per observation, truncated as by the agent")
    ] = 500
    observation_weight: Annotated[
        Fraction, Field(description="loss weight of observations; the model's own tokens have weight 1")
    ] = 0.0
    min_reward: Annotated[
        float | None, Field(description="skip trajectories with a lower reward; default: keep all")
    ] = None
    pack_tokens: Annotated[TokenCount, Field(description="tokens per packed forward pass")] = 16384
    save_minutes: Annotated[
        float,
        Field(ge=0, le=MAX_FLOAT, description="minutes between checkpoints, from which the same command resumes"),
    ] = 10.0
    seed: Annotated[Seed, Field(description="seed of the trace order and of the held-out split")] = 0

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
                f"batch_tokens {self.batch_tokens} is less than row_tokens {self.row_tokens}; "
                f"raise batch_tokens, or lower row_tokens"
            )
        return self

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of update `step`, counted from 0."""
        warmup = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        match self.decay:
            case "cosine":
                decay = 0.5 * (1 + cos(pi * step / steps))
            case "linear":
                decay = 1 - step / steps
            case "none":
                decay = 1.0
        return self.learning_rate * warmup * decay


def parse_options(options: Mapping[str, object]) -> SFTConfig:
    """Validate command-line options; None means the default. Raises ConfigError for the first invalid option."""
    try:
        return SFTConfig.model_validate({name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            words = str(first["ctx"]["error"]).split(" ")
            message = " ".join(_option(word) if word in SFTConfig.model_fields else word for word in words)
            raise ConfigError(message) from error
        (name,) = first["loc"]
        expectation = first["msg"].removeprefix("Input should be ")
        raise ConfigError(f"{_option(str(name))} {first['input']} should be {expectation}") from error


def option_help(name: str) -> str:
    """Return the help text of an option with its default."""
    field = SFTConfig.model_fields[name]
    return str(field.description) if field.default is None else f"{field.description}; default {field.default}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
