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


class ServiceConfig(Section):
    concurrency: Annotated[Positive, Field(description="requests in flight at most")] = 64
    rate: Annotated[float | None, Field(gt=0, description="requests a second at most; absent for no limit")] = None
    deadline: Annotated[float, Field(gt=0, description="seconds of one search, retries and waiting included")] = 60.0
    token_env: Annotated[
        str | None, Field(description="environment variable with the bearer token of a retrieval server")
    ] = None
    proxy: Annotated[str | None, Field(description="URL of a proxy")] = None
    language: Annotated[str | None, Field(description="web search: language of the results, such as en")] = None
    country: Annotated[str | None, Field(description="web search: country it is made from, such as us")] = None
    pages: Annotated[bool, Field(description="web search: the text of the page around the snippet")] = False


class RetrievalConfig(Section):
    index: Annotated[
        str | None,
        Field(
            description="an index folder, the http:// address of a retrieval server, web:serper (serpapi, google, "
            "brave), or import:package.function; built from the corpus when absent"
        ),
    ] = None
    k: Annotated[Positive, Field(description="passages shown for a search")] = 3
    kind: Annotated[
        Literal["bm25", "dense", "ann", "hybrid"], Field(description="of the index, when it is built here")
    ] = "bm25"
    k1: Annotated[float, Field(ge=0, description="BM25 term saturation, when the index is built here")] = 0.9
    b: Annotated[Share, Field(description="BM25 length normalisation, when the index is built here")] = 0.4
    stemmer: Annotated[str, Field(description="BM25 language of stems, or none, when the index is built here")] = (
        "english"
    )
    encoder: Annotated[
        str, Field(description="sentence encoder, when the index is built here: minilm, a folder, or a hub name")
    ] = "minilm"
    device: Annotated[str, Field(description="where vectors are searched: auto, cpu, cuda (all GPUs), cuda:0")] = "auto"
    rerank: Annotated[str | None, Field(description="a cross-encoder that orders the hits anew: folder or name")] = None
    rerank_depth: Annotated[Positive, Field(description="hits it is shown")] = 10
    cache: Annotated[NonNegative, Field(description="answers kept in memory; 0 for none")] = 0
    record: Annotated[bool, Field(description="write every search and its answer to searches.jsonl of the run")] = False
    replay: Annotated[str | None, Field(description="answer from such a file instead of searching")] = None
    service: ServiceConfig = ServiceConfig()

    @property
    def remote(self) -> bool:
        """Whether searches leave this process: to a server, or to the web."""
        return self.index is not None and self.index.startswith(("http://", "https://", "web:"))

    @property
    def local(self) -> bool:
        """Whether the index is a folder, of the user's own or built here."""
        return not self.remote and not (self.index or "").startswith("import:")

    @model_validator(mode="after")
    def _built(self) -> Self:
        words, vectors = ("k1", "b", "stemmer"), ("encoder",)
        if self.index is not None:
            self._without_effect("retrieval.index, which was built with its own", "kind", *words, *vectors)
        elif self.replay is not None:
            self._without_effect("retrieval.replay, for which no index is built", "kind", *words, *vectors)
        elif self.kind == "bm25":
            self._without_effect("retrieval.kind = bm25", *vectors, *(("device",) if self.rerank is None else ()))
        elif self.kind != "hybrid":
            self._without_effect(f"retrieval.kind = {self.kind}", *words)
        return self

    @model_validator(mode="after")
    def _searched(self) -> Self:
        if self.replay is not None:
            self._without_effect("retrieval.replay", "device", "rerank", "rerank_depth", "cache", "record")
        if not self.local:
            self._without_effect(f"retrieval.index = {self.index}", "device", "rerank", "rerank_depth")
        if self.rerank is None:
            self._without_effect("no retrieval.rerank", "rerank_depth")
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        when = f"retrieval.index = {self.index}" if self.index else "an index that is built here"
        if self.replay is not None:
            useless, when = tuple(ServiceConfig.model_fields), "retrieval.replay"
        elif not self.remote:
            useless = tuple(ServiceConfig.model_fields)
        elif str(self.index).startswith("web:"):
            useless = ("token_env",)
        else:
            useless = ("language", "country", "pages")
        self.service._without_effect(when, *useless, table="service.")
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
    slots: Annotated[Positive, Field(description="sequences computed at once")] = 128
    memory: Annotated[
        float,
        Field(gt=0, lt=1, description="share of the device's memory for keys and values at most, taken at the start"),
    ] = 0.3
    prefill_tokens: Annotated[
        Positive | None,
        Field(description="given tokens computed in one step at most; none: 16,384 on a GPU, 2,048 on a CPU"),
    ] = None
    stale_cache: Annotated[
        Literal["drop", "keep"],
        Field(description="keys and values of older weights: drop and compute again, or keep, which is not exact"),
    ] = "drop"
    parity: Annotated[
        float,
        Field(gt=0, description="mean difference between logprobs of engine and trainer above which no run starts"),
    ] = 0.02


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
        named = (self.data.corpus is not None) + (self.retrieval.index is not None)
        if named == 2 or (named == 0 and self.retrieval.replay is None):
            raise ValueError("give either data.corpus or retrieval.index: an index names its own corpus")
        return self
