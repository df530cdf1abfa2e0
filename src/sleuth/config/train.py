"""Settings of the training run: model, steps, optimiser, evaluation and metric trackers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import (
    MAX_FLOAT,
    EpisodeCount,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    TokenCount,
)

TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow")


class LoRAConfig(Section):
    rank: Annotated[int, Field(ge=0, le=1024, description="LoRA rank; 0 trains all weights.")] = 0
    alpha: Annotated[PositiveFloat, Field(description="LoRA scaling: alpha / rank.")] = 32.0
    targets: Annotated[str, Field(description="Modules with adapters: all-linear, or names such as q_proj,v_proj.")] = (
        "all-linear"
    )

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if not self.rank:
            self._reject_unused("model.lora.rank = 0", "alpha", "targets")
        return self


class ModelConfig(Section):
    policy: Annotated[
        str, Field(description="'quickstart', a Hugging Face model folder with tokenizer, or a hub name.")
    ] = "quickstart"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(description="Weight dtype; auto: bfloat16 with fp32 masters on a GPU, float32 on a CPU."),
    ] = "auto"
    lora: LoRAConfig = LoRAConfig()


class TrainConfig(Section):
    steps: Annotated[PositiveInt, Field(description="Training steps; each collects questions x samples episodes.")] = (
        100
    )
    questions: Annotated[EpisodeCount, Field(description="Questions per step.")] = 16
    samples: Annotated[EpisodeCount, Field(description="Episodes per question: the group size.")] = 8
    temperature: Annotated[
        PositiveFloat, Field(description="Sampling temperature, also applied to the trained logprobs.")
    ] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, description="Nucleus sampling threshold of rollouts; 1 disables it.")] = (
        1.0
    )
    top_k: Annotated[
        NonNegativeInt, Field(description="Sample rollouts from the k most likely tokens; 0 disables it.")
    ] = 0
    mode: Annotated[
        Literal["sync", "ahead"],
        Field(description="sync, or ahead: collect the next rollouts during the update, one weight version behind."),
    ] = "sync"
    resample: Annotated[
        int,
        Field(ge=0, le=10_000, description="Maximum rounds of replacing groups without reward spread by new ones."),
    ] = 0
    updates: Annotated[PositiveInt, Field(description="Mini-batches (optimiser updates) per step; 1 is on-policy.")] = 1
    optimiser: Annotated[
        Literal["adamw", "adamw8bit"], Field(description="adamw, or adamw8bit with 8-bit moments.")
    ] = "adamw"
    offload: Annotated[bool, Field(description="Keep optimiser masters and moments in host memory.")] = False
    recompute: Annotated[
        Fraction, Field(description="Fraction of layers with activation recomputation, to save memory.")
    ] = 0.0
    learning_rate: Annotated[PositiveFloat, Field(description="Peak learning rate.")] = 1e-6
    warmup: Annotated[Fraction, Field(description="Fraction of steps with linear learning-rate warmup.")] = 0.0
    decay: Annotated[Fraction, Field(description="Fraction of steps, at the end, with linear decay to zero.")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=MAX_FLOAT, description="AdamW weight decay.")] = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1, description="AdamW beta1.")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="AdamW beta2.")] = 0.999
    epsilon: Annotated[PositiveFloat, Field(description="AdamW epsilon.")] = 1e-8
    gradient_clip: Annotated[float, Field(gt=0, le=1e12, description="Maximum gradient norm (clipping).")] = 1.0
    pack_tokens: Annotated[TokenCount, Field(description="Tokens per packed forward pass.")] = 16384
    save_every: Annotated[PositiveInt, Field(description="Steps between checkpoints.")] = 20
    keep: Annotated[PositiveInt, Field(description="Number of newest checkpoints to keep.")] = 2
    keep_best: Annotated[
        bool, Field(description="Also keep the checkpoint with the best evaluation; needs evaluate.every.")
    ] = False
    threads: Annotated[int, Field(ge=0, le=1024, description="CPU threads; 0 uses torch's default.")] = 0
    seed: Annotated[Seed, Field(description="Seed of question order and sampling.")] = 0


class EvaluateConfig(Section):
    questions: Annotated[EpisodeCount, Field(description="Number of held-out questions per evaluation.")] = 200
    every: Annotated[NonNegativeInt, Field(description="Steps between evaluations during training; 0 for none.")] = 0
    before: Annotated[bool, Field(description="Evaluate before training.")] = True
    after: Annotated[bool, Field(description="Evaluate after training.")] = True


class TrackConfig(Section):
    to: Annotated[
        str, Field(description="Trackers besides metrics.jsonl: wandb, tensorboard, trackio, mlflow; comma-separated.")
    ] = ""
    project: Annotated[str, Field(min_length=1, description="Project name in the trackers.")] = "sleuth"

    @property
    def trackers(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.to.split(",")) if self.to.strip() else ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.trackers:
            if name not in TRACKERS:
                raise ValueError(f"to = {name!r} is not a tracker; expected {', '.join(TRACKERS)}, separated by commas")
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError(f"to = {self.to!r} names a tracker twice; name each once")
        if not set(self.trackers) - {"tensorboard"}:
            self._reject_unused(f"track.to = {self.to!r}", "project")
        return self
