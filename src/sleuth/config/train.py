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
    rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """LoRA rank; 0 trains all weights."""
    alpha: PositiveFloat = 32.0
    """LoRA scaling: alpha / rank."""
    targets: str = "all-linear"
    """Modules with adapters: all-linear, or names such as q_proj,v_proj."""

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if not self.rank:
            self._reject_unused("model.lora.rank = 0", "alpha", "targets")
        return self


class ModelConfig(Section):
    policy: str = "quickstart"
    """'quickstart', a Hugging Face model folder with tokenizer, or a hub name."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weight dtype; auto: bfloat16 with fp32 masters on a GPU, float32 on a CPU."""
    lora: LoRAConfig = LoRAConfig()


class TreeConfig(Section):
    trees: Annotated[int, Field(ge=0, le=1000)] = 0
    """Trees of rollouts per question, each with one complete episode; 0: episodes are sampled independently
    (docs/methods.md)."""
    branches: Annotated[int, Field(gt=0, le=1000)] = 2
    """Branch points per tree and round; each starts one new episode."""
    rounds: Annotated[int, Field(gt=0, le=1000)] = 1
    """Rounds of branching; later rounds also draw turns of the branches."""

    @property
    def leaves_per_tree(self) -> int:
        """Episodes of a tree; 1 without trees."""
        return 1 + self.branches * self.rounds if self.trees else 1

    @property
    def leaves(self) -> int:
        """Episodes per question."""
        return self.trees * self.leaves_per_tree

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if not self.trees:
            self._reject_unused("train.tree.trees = 0", "branches", "rounds")
        return self


class TrainConfig(Section):
    steps: PositiveInt = 100
    """Training steps; each collects questions x samples episodes."""
    questions: EpisodeCount = 16
    """Questions per step."""
    samples: EpisodeCount = 8
    """Episodes per question: the group size."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, also applied to the trained logprobs."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling threshold of rollouts; 1 disables it."""
    top_k: NonNegativeInt = 0
    """Sample rollouts from the k most likely tokens; 0 disables it."""
    roles: list[str] = []  # noqa: RUF012  pydantic copies it
    """Roles of an outside agent to train, as in model="policy/ROLE"; empty trains every role."""
    mode: Literal["sync", "ahead", "async"] = "sync"
    """sync; ahead: collect the next rollouts during the update, one weight version behind; async: sample all the time
    (docs/async.md)."""
    staleness: Annotated[int, Field(ge=0, le=1000)] = 1
    """async: maximum age of a token when it is trained, in weight versions; 0 is sync."""
    resample: Annotated[int, Field(ge=0, le=10000)] = 0
    """Maximum rounds of replacing groups without reward spread with new groups."""
    curriculum: Literal["none", "spread"] = "none"
    """Order of the questions from the second epoch on: shuffled; or first those whose last group had reward spread,
    then those never solved, then those always solved."""
    updates: PositiveInt = 1
    """Mini-batches (optimiser updates) per step; 1 is on-policy."""
    optimiser: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw, or adamw8bit with 8-bit moments."""
    offload: bool = False
    """Keep optimiser masters and moments in host memory."""
    recompute: Fraction = 0.0
    """Fraction of layers with activation recomputation, to save memory."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate."""
    warmup: Fraction = 0.0
    """Fraction of steps with linear learning-rate warmup."""
    decay: Fraction = 0.0
    """Fraction of steps, at the end, with linear decay to zero."""
    weight_decay: Annotated[float, Field(ge=0, le=MAX_FLOAT)] = 0.01
    """AdamW weight decay."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta1."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW beta2."""
    epsilon: PositiveFloat = 1e-8
    """AdamW epsilon."""
    gradient_clip: Annotated[float, Field(gt=0, le=1000000000000.0)] = 1.0
    """Maximum gradient norm (clipping)."""
    pack_tokens: TokenCount | None = None
    """Tokens per packed forward pass. Default: 16384; more for small models, as long as activations fit in a
    sixth of GPU memory."""
    save_every: PositiveInt = 20
    """Steps between checkpoints."""
    keep: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    keep_best: bool = False
    """Also keep the checkpoint with the most right answers in an evaluation; needs evaluate.every."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads; 0 uses torch's default."""
    seed: Seed = 0
    """Seed of question order and sampling."""
    tree: TreeConfig = TreeConfig()

    @property
    def max_staleness(self) -> int:
        """Maximum age of a token when it is trained, in weight versions, in every mode."""
        return {"sync": 0, "ahead": 1}.get(self.mode, self.staleness)

    @property
    def is_streaming(self) -> bool:
        """Whether episodes are sampled all the time, also while their weights change."""
        return self.mode == "async" and self.staleness > 0

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.mode != "async":
            self._reject_unused(f"train.mode = {self.mode}", "staleness")
        tree = self.tree
        if tree.trees and self.samples != tree.leaves:
            raise ValueError(
                f"samples = {self.samples} is not the number of episodes that train.tree gives: {tree.trees} trees x "
                f"(1 + {tree.branches} branches x {tree.rounds} rounds) = {tree.leaves}; set train.samples to it"
            )
        return self


class EvaluateConfig(Section):
    questions: EpisodeCount = 200
    """Number of held-out questions per evaluation."""
    every: NonNegativeInt = 0
    """Steps between evaluations during training; 0 for none."""
    before: bool = True
    """Evaluate before training."""
    after: bool = True
    """Evaluate after training."""


class TrackConfig(Section):
    to: str = ""
    """Trackers besides metrics.jsonl: wandb, tensorboard, trackio, mlflow; comma-separated."""
    project: Annotated[str, Field(min_length=1)] = "sleuth"
    """Project name in the trackers."""

    @property
    def trackers(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.to.split(",")) if self.to.strip() else ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.trackers:
            if name not in TRACKERS:
                expected = f"{', '.join(TRACKERS)}, separated by commas"
                raise ValueError(f"to = {name[:60]!r} is not a tracker; expected {expected}")
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError(f"to = {self.to!r} names a tracker twice; name each once")
        if not set(self.trackers) - {"tensorboard"}:
            self._reject_unused(f"track.to = {self.to[:60]!r}", "project")
        return self
