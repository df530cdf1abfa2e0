"""Every knob of a training run, declared once; strict, frozen, saved with the run as resolved."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

GROUPED = ("grpo", "dr_grpo", "rloo")  # advantages that compare the samples of one question with each other


class Section(BaseModel):
    """A table of the recipe: unknown keys are refused, values are of the type declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def _without_effect(self, when: str, *names: str, table: str = "") -> None:
        """Refuses knobs that were set although `when` makes them meaningless."""
        for name in names:
            if name in self.model_fields_set:
                raise ValueError(f"{table}{name} has no effect with {when}; remove it")


class ModelConfig(Section):
    policy: Annotated[str, Field(description="'quickstart' or a Hugging Face folder with model and tokenizer")] = (
        "quickstart"
    )


class WorldConfig(Section):
    passages: Annotated[int, Field(ge=100, le=1_000_000, description="passages of the generated encyclopedia")] = 2000
    questions: Annotated[Positive, Field(description="training questions made from it")] = 4000
    seed: Annotated[NonNegative, Field(description="the same seed gives the same world")] = 0


class DataConfig(Section):
    corpus: Annotated[str | None, Field(description="corpus JSONL; not with a generated world")] = None
    train: Annotated[str | None, Field(description="questions to train on, JSONL; not with a generated world")] = None
    test: Annotated[str | None, Field(description="held-out questions, JSONL; not with a generated world")] = None
    shuffle: Annotated[bool, Field(description="shuffle the training questions anew each epoch, by train.seed")] = True


class RetrievalConfig(Section):
    index: Annotated[str | None, Field(description="an index folder; built from the corpus when absent")] = None
    k: Annotated[Positive, Field(description="passages shown for a search")] = 3
    k1: Annotated[float, Field(gt=0, description="BM25 term saturation, when the index is built here")] = 0.9
    b: Annotated[Share, Field(description="BM25 length normalisation, when the index is built here")] = 0.4

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.index is not None:
            self._without_effect("retrieval.index, which was built with its own", "k1", "b")
        return self


class AgentConfig(Section):
    protocol: Annotated[str, Field(description="the grammar of actions: tags, or import:package.function")] = "tags"
    prompt: Annotated[str, Field(description="the instruction by name: instruct or brief")] = "instruct"
    searches: Annotated[NonNegative, Field(description="searches before the last turn, which must answer")] = 4
    turn_tokens: Annotated[Positive, Field(description="tokens sampled in one turn at most")] = 500
    observation_tokens: Annotated[Positive, Field(description="tokens of one observation at most")] = 500
    context_tokens: Annotated[Positive, Field(description="tokens of a whole episode at most, prompt included")] = 4096


class EngineConfig(Section):
    kind: Annotated[Literal["paged"], Field(description="paged: the embedded engine")] = "paged"
    slots: Annotated[Positive, Field(description="sequences whose keys and values are held at once")] = 128


class RewardConfig(Section):
    answer: Annotated[str, Field(description="em, f1, cover_em, or import:package.function")] = "em"
    format: Annotated[
        bool, Field(description="the tiers of Search-R1 v0.3: right/wrong times valid/invalid format")
    ] = False
    retrieval: Annotated[
        Share, Field(description="added when the answer is wrong, the format valid, and a gold answer was retrieved")
    ] = 0.0
    many_answers: Annotated[
        bool, Field(description="divide by four when a response holds more than ten answer tags")
    ] = False

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.format:
            self._without_effect("reward.format = false", "retrieval")
        return self


class KLConfig(Section):
    place: Annotated[
        Literal["none", "loss", "reward"], Field(description="where the distance to the reference is charged")
    ] = "none"
    estimator: Annotated[Literal["k1", "k2", "k3"], Field(description="Schulman's estimators")] = "k3"
    coefficient: Annotated[float, Field(gt=0, description="weight of the distance")] = 0.001

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.place == "none":
            self._without_effect("algorithm.kl.place = none", "estimator", "coefficient")
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator = k1 has no effect with algorithm.kl.place = loss, where its gradient is zero on average; "
                "choose k2 or k3, or algorithm.kl.place = reward"
            )
        return self


class AlgorithmConfig(Section):
    advantage: Annotated[str, Field(description="grpo, dr_grpo, rloo, reinforce, or import:package.function")] = "grpo"
    loss: Annotated[str, Field(description="clipped, or import:package.function")] = "clipped"
    clip_low: Annotated[float, Field(gt=0, lt=1, description="the ratio is held above 1 - clip_low")] = 0.2
    clip_high: Annotated[float, Field(gt=0, description="the ratio is held below 1 + clip_high")] = 0.2
    negative_weight: Annotated[Share, Field(description="weight of tokens with a negative advantage")] = 1.0
    normalise: Annotated[
        Literal["token", "sequence", "constant"], Field(description="what the summed token losses are divided by")
    ] = "token"
    constant: Annotated[Positive, Field(description="tokens a trajectory is divided by when normalise = constant")] = (
        1024
    )
    kl: KLConfig = KLConfig()

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.normalise != "constant":
            self._without_effect(f"algorithm.normalise = {self.normalise}", "constant")
        return self


class TrainConfig(Section):
    steps: Annotated[Positive, Field(description="optimiser rounds: questions x samples episodes each")] = 100
    questions: Annotated[Positive, Field(description="questions a step")] = 16
    samples: Annotated[Positive, Field(description="episodes a question: the group")] = 8
    temperature: Annotated[float, Field(gt=0, description="of sampling, and of the logprobs trained on")] = 1.0
    updates: Annotated[Positive, Field(description="mini-batches a step; 1 is on-policy")] = 1
    learning_rate: Annotated[float, Field(gt=0, description="of AdamW, at its highest")] = 1e-6
    warmup: Annotated[Share, Field(description="share of the steps over which the rate rises")] = 0.0
    decay: Annotated[
        Share, Field(description="share of the steps, the last ones, over which the rate falls to zero")
    ] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="of AdamW")] = 0.01
    gradient_clip: Annotated[float, Field(gt=0, description="norm the gradient is scaled down to")] = 1.0
    pack_tokens: Annotated[Positive, Field(description="tokens of one packed forward pass")] = 16384
    search_failures: Annotated[
        Share, Field(description="share of a step's episodes lost to search above which the run stops")
    ] = 0.05
    save_every: Annotated[Positive, Field(description="steps between checkpoints")] = 20
    keep: Annotated[Positive, Field(description="checkpoints kept, the newest")] = 2
    threads: Annotated[int, Field(ge=0, le=1024, description="CPU threads of the run; 0 takes what torch takes")] = 0
    seed: Annotated[NonNegative, Field(description="of questions and sampling")] = 0


class EvaluateConfig(Section):
    questions: Annotated[Positive, Field(description="held-out questions asked before and after training")] = 200
    every: Annotated[NonNegative, Field(description="steps between evaluations during training; 0 for none")] = 0


class Config(Section):
    """A whole run; the tables of a recipe are its fields."""

    name: Annotated[str, Field(description="names the run folder")] = "run"
    model: ModelConfig = ModelConfig()
    world: WorldConfig | None = None
    data: DataConfig = DataConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    agent: AgentConfig = AgentConfig()
    engine: EngineConfig = EngineConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.train.samples == 1 and self.algorithm.advantage in GROUPED:
            raise ValueError(
                f"train.samples = 1 leaves algorithm.advantage = {self.algorithm.advantage} nothing to compare with; "
                "raise it to 2 or more, or choose reinforce"
            )
        return self

    @model_validator(mode="after")
    def _sources(self) -> Self:
        if not self.name.strip() or self.name.startswith(".") or set(self.name) & set("/\\"):
            raise ValueError(
                f"name = {self.name!r} cannot be the name of a folder; leave out slashes and a leading dot"
            )
        if self.world is not None:
            self.data._without_effect("a generated world", "corpus", "train", "test", table="data.")
            if self.retrieval.index is not None:
                raise ValueError("retrieval.index has no effect with a generated world; remove it")
            return self
        for name in ("train", "test"):
            if getattr(self.data, name) is None:
                raise ValueError(f"data.{name} is missing; give a questions file, or a [world] to generate one")
        if (self.data.corpus is None) == (self.retrieval.index is None):
            raise ValueError("give either data.corpus or retrieval.index: an index names its own corpus")
        return self
