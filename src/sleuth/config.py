"""Every knob of a training run, declared once; strict, frozen, saved with the run as resolved."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]

GROUPED = ("grpo", "dr_grpo", "rloo")  # advantages that compare the samples of one question with each other
UNGROUPED = ("reinforce", "reinforce_pp", "gae")  # and those that do not

# Guards that see a step's episodes or its gradient can keep the step from being learned; the others come after it.
EarlyAction = Literal["off", "warn", "skip", "rollback", "stop"]
LateAction = Literal["off", "warn", "rollback", "stop"]
WATCHED = ("gradient_norm", "entropy", "likelihood", "malformed", "answerless", "search_failures", "parity")
TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow")
ACCESS = "tools-access"  # the protocol that opens pages
SINGLE = ("direct", "cot", "rag")  # methods of one turn, each with a prompt of its own name
UNSEARCHED = ("direct", "cot")  # and those that search nothing
STARTED = ("command", "memory", "prefill_tokens")  # settings of a server of vLLM that the run starts itself
APART = {"paged": 0.02, "vllm": 0.1}  # nats in the mean between logprobs of engine and trainer that a run starts with


class Section(BaseModel):
    """A table of the recipe: unknown keys are refused, values are of the type declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def _without_effect(self, when: str, *names: str, table: str = "") -> None:
        """Refuses knobs that were set although `when` makes them meaningless."""
        for name in names:
            if name in self.model_fields_set:
                raise ValueError(f"{table}{name} has no effect with {when}; remove it")


class LoRAConfig(Section):
    rank: Annotated[
        int, Field(ge=0, le=1024, description="of the adapters that are trained; 0: the whole model is")
    ] = 0
    alpha: Annotated[float, Field(gt=0, description="adapters weigh alpha / rank")] = 32.0
    targets: Annotated[str, Field(description="layers that get one: all-linear, or names as q_proj,v_proj")] = (
        "all-linear"
    )

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.rank:
            self._without_effect("model.lora.rank = 0", "alpha", "targets")
        return self


class ModelConfig(Section):
    policy: Annotated[
        str, Field(description="'quickstart', a Hugging Face folder with model and tokenizer, or a name on the hub")
    ] = "quickstart"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(description="of the weights in use; auto: bfloat16 on a GPU, with fp32 masters, float32 on a CPU"),
    ] = "auto"
    lora: LoRAConfig = LoRAConfig()


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
    pages: Annotated[
        str | None,
        Field(description="what tools-access opens: JSONL with url and contents; absent: the pages of the server"),
    ] = None
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
    protocol: Annotated[
        str,
        Field(
            description="the grammar of actions: tags, tools (function calls through the model's chat template), "
            "tools-access (which opens pages too), or import:package.function"
        ),
    ] = "tags"
    method: Annotated[
        str,
        Field(
            description="how a question is answered: search (in turns), direct (the answer alone), cot (thought and "
            "answer), rag (with what a search for the question found), or import:package.function"
        ),
    ] = "search"
    prompt: Annotated[
        str | None,
        Field(
            description="the prompt by its name in agent/prompts.toml of the package, or FILE.toml:NAME; "
            "absent: that of the method, instruct for search"
        ),
    ] = None
    searches: Annotated[NonNegative, Field(description="searches before the last turn, which must answer")] = 4
    turn_tokens: Annotated[Positive, Field(description="tokens sampled in one turn at most")] = 500
    observation_tokens: Annotated[Positive, Field(description="tokens of one observation at most")] = 500
    context_tokens: Annotated[Positive, Field(description="tokens of a whole episode at most, prompt included")] = 4096

    @property
    def template(self) -> str:
        """The name of the prompt, also where none was chosen."""
        return self.prompt or (self.method if self.method in SINGLE else "instruct")

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.method in SINGLE:
            self._without_effect(f"agent.method = {self.method}, which has one turn", "searches")
        if self.method in UNSEARCHED:
            self._without_effect(f"agent.method = {self.method}, which searches nothing", "observation_tokens")
        return self


class EngineConfig(Section):
    kind: Annotated[
        Literal["paged", "vllm"], Field(description="paged: the embedded engine; vllm: servers of vLLM (docs/vllm.md)")
    ] = "paged"
    url: Annotated[
        str | None,
        Field(
            description="vllm: addresses of servers, by commas; absent: one is started beside the trainer, and ended"
        ),
    ] = None
    command: Annotated[
        str, Field(description="vllm without url: what starts a server; after serve options of your own")
    ] = "vllm serve"
    weights: Annotated[
        Literal["disk", "device"],
        Field(
            description="vllm: new weights go through a folder, or the memory of a GPU that trainer and servers share"
        ),
    ] = "disk"
    exchange: Annotated[
        str | None,
        Field(description="vllm: that folder, which all servers read by the same name; absent: one in the run folder"),
    ] = None
    in_flight: Annotated[
        Literal["finish", "pause", "abort"],
        Field(
            description="vllm: requests of others at its servers when new weights come are finished by the old, wait "
            "and are gone on with by the new, or are ended"
        ),
    ] = "pause"
    slots: Annotated[Positive, Field(description="sequences computed at once; vllm: by each server")] = 128
    memory: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="share of the device's memory for keys and values at most, taken at the start; vllm: for all "
            "that its server holds",
        ),
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
        float | None,
        Field(
            gt=0,
            description="mean difference between logprobs of engine and trainer above which no run starts; absent: "
            "0.02, vllm: 0.1, for it is corrected",
        ),
    ] = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers named, in order; an API's own path behind them is not part of their address."""
        named = (each.strip().rstrip("/") for each in (self.url or "").split(","))
        return tuple(dict.fromkeys(each.removesuffix("/v1") for each in named if each))

    @property
    def apart(self) -> float:
        """How far apart logprobs may be in the mean."""
        return self.parity if self.parity is not None else APART[self.kind]

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.kind == "paged":
            self._without_effect("engine.kind = paged", "url", "command", "weights", "exchange", "in_flight")
            return self
        self._without_effect("engine.kind = vllm, which always drops them", "stale_cache")
        if self.weights == "device":
            self._without_effect("engine.weights = device", "exchange")
        if self.url is None:
            self._without_effect("a server of the run's own, which serves nobody else", "in_flight")
        else:
            self._without_effect("engine.url, whose servers were started with their own", *STARTED)
        return self

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        if self.url is not None and not self.addresses:
            raise ValueError(f"url = {self.url!r} names no address; write it like http://127.0.0.1:8000, or remove it")
        if "serve" not in self.command.split():
            raise ValueError(f"command = {self.command!r} has no word serve; write it like env/bin/vllm serve")
        for each in self.addresses:
            if not each.startswith(("http://", "https://")):
                raise ValueError(f"url = {each!r} is no address; write it like http://127.0.0.1:8000")
        return self


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
    coefficient: Annotated[float, Field(gt=0, description="weight of the distance, at first where it adapts")] = 0.001
    target: Annotated[
        float | None, Field(gt=0, description="distance a token towards which the weight adapts; absent: it is fixed")
    ] = None
    horizon: Annotated[Positive, Field(description="episodes over which it adapts")] = 10_000

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.place == "none":
            self._without_effect("algorithm.kl.place = none", "estimator", "coefficient", "target", "horizon")
        if self.target is None:
            self._without_effect("no algorithm.kl.target", "horizon")
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator = k1 has no effect with algorithm.kl.place = loss, where its gradient is zero on average; "
                "choose k2 or k3, or algorithm.kl.place = reward"
            )
        return self


class CorrectionConfig(Section):
    level: Annotated[
        Literal["auto", "none", "token", "sequence", "geometric"],
        Field(
            description="what the ratio of trainer to engine is taken over; none: no correction; auto: none, with "
            "engine.kind = vllm token where logprobs differ"
        ),
    ] = "auto"
    action: Annotated[
        Literal["truncate", "mask", "clip"],
        Field(description="ratios outside the bounds: held below the upper, dropped, or held between both"),
    ] = "truncate"
    low: Annotated[float | None, Field(gt=0, description="lower bound of the ratio; absent: none")] = None
    high: Annotated[float, Field(gt=0, description="upper bound of the ratio")] = 2.0
    veto: Annotated[
        float | None, Field(gt=0, description="a trajectory with one token's ratio below this is dropped; absent: none")
    ] = None

    @property
    def chosen(self) -> bool:
        """Whether there is one whatever the engine turns out to be."""
        return self.level not in ("auto", "none")

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.chosen:
            self._without_effect(f"algorithm.correction.level = {self.level}", "action", "low", "high", "veto")
        if self.action == "truncate":
            self._without_effect("algorithm.correction.action = truncate", "low")
        if self.action == "clip" and self.low is None:
            raise ValueError("action = clip holds the ratio between two bounds; give algorithm.correction.low too")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}; lower it")
        return self


class CriticConfig(Section):
    policy: Annotated[
        str | None, Field(description="the model the critic begins as: folder or name; absent: that of model.policy")
    ] = None
    learning_rate: Annotated[float, Field(gt=0, description="of AdamW, for the critic")] = 1e-5
    rate_warmup: Annotated[
        Share | None, Field(description="share of the steps over which the critic's rate rises; absent: train.warmup")
    ] = None
    gamma: Annotated[Share, Field(description="what a later reward is worth, from one sampled token to the next")] = 1.0
    lam: Annotated[Share, Field(description="1: advantages of whole returns; 0: of the critic's next value")] = 1.0
    clip: Annotated[float, Field(gt=0, description="values move by at most this in one step")] = 0.5
    warmup: Annotated[NonNegative, Field(description="steps in which the critic learns alone")] = 0


class AlgorithmConfig(Section):
    advantage: Annotated[
        str, Field(description="grpo, dr_grpo, rloo, reinforce, reinforce_pp, gae (PPO), or import:package.function")
    ] = "grpo"
    loss: Annotated[str, Field(description="clipped, gspo, cispo, or import:package.function")] = "clipped"
    clip_low: Annotated[float, Field(gt=0, lt=1, description="the ratio is held above 1 - clip_low")] = 0.2
    clip_high: Annotated[float, Field(gt=0, description="the ratio is held below 1 + clip_high")] = 0.2
    clip_dual: Annotated[
        float | None, Field(gt=1, description="losses of negative advantages are held below this ratio; absent: not")
    ] = None
    negative_weight: Annotated[Share, Field(description="weight of tokens with a negative advantage")] = 1.0
    entropy: Annotated[float, Field(ge=0, description="weight of the entropy bonus")] = 0.0
    normalise: Annotated[
        Literal["token", "sequence", "constant"], Field(description="what the summed token losses are divided by")
    ] = "token"
    constant: Annotated[Positive, Field(description="tokens a trajectory is divided by when normalise = constant")] = (
        1024
    )
    overlong: Annotated[
        Literal["keep", "filter", "shape"],
        Field(description="episodes that ran out of tokens: kept, left out of the loss, or punished near the limit"),
    ] = "keep"
    overlong_tokens: Annotated[
        Positive, Field(description="tokens before the end of the context over which the punishment rises to 1")
    ] = 128
    old: Annotated[
        Literal["auto", "engine", "recompute"],
        Field(description="logprobs of the policy that sampled; auto: the engine's, unless correction needs both"),
    ] = "auto"
    origin_mask: Annotated[
        bool, Field(description="train on sampled tokens only; off, retrieved text is trained on too: an ablation")
    ] = True
    kl: KLConfig = KLConfig()
    correction: CorrectionConfig = CorrectionConfig()
    critic: CriticConfig = CriticConfig()

    @property
    def recomputes(self) -> bool:
        """Whether old logprobs are those of a forward pass of the trainer."""
        return self.old == "recompute" or self.correction.chosen or not self.origin_mask

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.normalise != "constant":
            self._without_effect(f"algorithm.normalise = {self.normalise}", "constant")
        if self.overlong != "shape":
            self._without_effect(f"algorithm.overlong = {self.overlong}", "overlong_tokens")
        if self.loss != "clipped":
            self._without_effect(f"algorithm.loss = {self.loss}", "clip_dual")
        if self.advantage != "gae":
            self.critic._without_effect(
                f"algorithm.advantage = {self.advantage}", *CriticConfig.model_fields, table="critic."
            )
        return self

    @model_validator(mode="after")
    def _old(self) -> Self:
        if self.old == "engine" and self.correction.chosen:
            raise ValueError("old = engine leaves algorithm.correction nothing to correct; remove one of the two")
        if not self.origin_mask and (self.old == "engine" or self.correction.chosen or self.advantage == "gae"):
            raise ValueError(
                "origin_mask = false trains on tokens no engine sampled; remove algorithm.old = engine, "
                "algorithm.correction and algorithm.advantage = gae"
            )
        return self


class TrainConfig(Section):
    steps: Annotated[Positive, Field(description="optimiser rounds: questions x samples episodes each")] = 100
    questions: Annotated[Positive, Field(description="questions a step")] = 16
    samples: Annotated[Positive, Field(description="episodes a question: the group")] = 8
    temperature: Annotated[float, Field(gt=0, description="of sampling, and of the logprobs trained on")] = 1.0
    mode: Annotated[
        Literal["sync", "ahead"],
        Field(description="ahead: the next episodes are sampled while this step trains, by weights one version old"),
    ] = "sync"
    resample: Annotated[
        NonNegative, Field(description="rounds in which groups without spread are replaced by new questions at most")
    ] = 0
    updates: Annotated[Positive, Field(description="mini-batches a step; 1 is on-policy")] = 1
    optimiser: Annotated[Literal["adamw", "adamw8bit"], Field(description="adamw8bit keeps its moments in 8 bits")] = (
        "adamw"
    )
    offload: Annotated[bool, Field(description="masters and moments of the optimiser in host memory")] = False
    recompute: Annotated[
        Share, Field(description="share of the layers whose states are computed again backwards, to save memory")
    ] = 0.0
    learning_rate: Annotated[float, Field(gt=0, description="of AdamW, at its highest")] = 1e-6
    warmup: Annotated[Share, Field(description="share of the steps over which the rate rises")] = 0.0
    decay: Annotated[
        Share, Field(description="share of the steps, the last ones, over which the rate falls to zero")
    ] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="of AdamW")] = 0.01
    gradient_clip: Annotated[float, Field(gt=0, description="norm the gradient is scaled down to")] = 1.0
    pack_tokens: Annotated[Positive, Field(description="tokens of one packed forward pass")] = 16384
    save_every: Annotated[Positive, Field(description="steps between checkpoints")] = 20
    keep: Annotated[Positive, Field(description="checkpoints kept, the newest")] = 2
    keep_best: Annotated[bool, Field(description="and the one whose evaluation was best; needs evaluate.every")] = False
    threads: Annotated[int, Field(ge=0, le=1024, description="CPU threads of the run; 0 takes what torch takes")] = 0
    seed: Annotated[NonNegative, Field(description="of questions and sampling")] = 0


class EvaluateConfig(Section):
    questions: Annotated[Positive, Field(description="held-out questions asked in an evaluation")] = 200
    every: Annotated[NonNegative, Field(description="steps between evaluations during training; 0 for none")] = 0
    before: Annotated[bool, Field(description="ask them before training too")] = True
    after: Annotated[bool, Field(description="ask them after training too")] = True


class GuardsConfig(Section):
    """Thresholds stand beside what is done where they are crossed; docs/guards.md tells what each guard sees."""

    non_finite: Annotated[
        Literal["skip", "rollback", "stop"], Field(description="on a loss or a gradient that is no number")
    ] = "rollback"
    gradient_norm: Annotated[
        float, Field(gt=1, description="times its median over the window that a gradient norm may be")
    ] = 20.0
    gradient_norm_action: Annotated[EarlyAction, Field(description="on a larger one")] = "skip"
    entropy: Annotated[Share, Field(description="share of its first value that the entropy may fall to")] = 0.02
    entropy_action: Annotated[LateAction, Field(description="on a lower one")] = "warn"
    likelihood: Annotated[
        float, Field(gt=0, description="nats that the mean logprob of the best answers may fall below its highest")
    ] = 0.3
    likelihood_action: Annotated[LateAction, Field(description="on a larger fall")] = "warn"
    malformed: Annotated[
        Share, Field(description="rise of the share of malformed episodes over its lowest that may be")
    ] = 0.5
    malformed_action: Annotated[EarlyAction, Field(description="on a larger rise")] = "rollback"
    answerless: Annotated[
        Share, Field(description="rise of the share of episodes without an answer over its lowest that may be")
    ] = 0.5
    answerless_action: Annotated[EarlyAction, Field(description="on a larger rise")] = "rollback"
    search_failures: Annotated[Share, Field(description="share of a step's episodes that may be lost to search")] = 0.05
    search_failures_action: Annotated[EarlyAction, Field(description="on a larger share")] = "stop"
    parity: Annotated[
        float, Field(gt=0, description="distance (k3) that logprobs of engine and trainer may be apart")
    ] = 0.05
    parity_action: Annotated[LateAction, Field(description="on a larger one")] = "warn"
    window: Annotated[Positive, Field(description="steps that medians and running means look back on")] = 20
    rollbacks: Annotated[Positive, Field(description="rollbacks of a run at most; the next one stops it")] = 3
    rollback_rate: Annotated[
        float, Field(gt=0, le=1, description="times which the learning rate is taken after each rollback")
    ] = 0.5

    @property
    def actions(self) -> dict[str, str]:
        """What each guard does, by its name."""
        named = {name: getattr(self, f"{name}_action") for name in WATCHED}
        return {"non_finite": self.non_finite, **named}

    @model_validator(mode="after")
    def _effective(self) -> Self:
        for name in WATCHED:
            if self.actions[name] == "off":
                self._without_effect(f"guards.{name}_action = off", name)
        if self.gradient_norm_action == "off" and self.likelihood_action == "off":
            self._without_effect("guards.gradient_norm_action = off and likelihood_action = off", "window")
        if "rollback" not in self.actions.values():
            self._without_effect("no guard whose action is rollback", "rollbacks", "rollback_rate")
        return self


class TrackConfig(Section):
    to: Annotated[
        str, Field(description="where metrics go besides metrics.jsonl: wandb, tensorboard, trackio, mlflow, by commas")
    ] = ""
    project: Annotated[str, Field(min_length=1, description="name they are collected under there")] = "sleuth"

    @property
    def named(self) -> tuple[str, ...]:
        """The trackers asked for, in order."""
        return tuple(name.strip() for name in self.to.split(",")) if self.to.strip() else ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.named:
            if name not in TRACKERS:
                raise ValueError(f"to = {name!r} is no tracker; expected some of {', '.join(TRACKERS)}, by commas")
        if len(set(self.named)) < len(self.named):
            raise ValueError(f"to = {self.to!r} names a tracker twice; name each once")
        if not set(self.named) - {"tensorboard"}:
            self._without_effect(f"track.to = {self.to!r}", "project")
        return self


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
    guards: GuardsConfig = GuardsConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="after")
    def _pages(self) -> Self:
        if self.agent.protocol == ACCESS:
            for name in ("record", "replay"):
                if getattr(self.retrieval, name):
                    raise ValueError(
                        f"retrieval.{name} knows searches alone, and agent.protocol = {ACCESS} opens pages too; "
                        "remove it, or choose tools"
                    )
        elif not self.agent.protocol.startswith("import:"):
            self.retrieval._without_effect(f"agent.protocol = {self.agent.protocol}", "pages", table="retrieval.")
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engine.kind == "vllm" and self.model.lora.rank:
            raise ValueError(
                f"model.lora.rank = {self.model.lora.rank} trains adapters, and engine.kind = vllm is sent whole "
                "weights only; train the whole model, or choose engine.kind = paged"
            )
        return self

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.train.samples == 1 and self.algorithm.advantage in GROUPED:
            raise ValueError(
                f"train.samples = 1 leaves algorithm.advantage = {self.algorithm.advantage} nothing to compare with; "
                "raise it to 2 or more, or choose reinforce"
            )
        return self

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.algorithm.overlong == "shape" and self.algorithm.overlong_tokens >= self.agent.context_tokens:
            raise ValueError(
                f"algorithm.overlong_tokens = {self.algorithm.overlong_tokens} is not less than agent.context_tokens = "
                f"{self.agent.context_tokens}; lower it"
            )
        if self.train.updates > self.train.questions:
            raise ValueError(
                f"train.updates = {self.train.updates} cuts the {self.train.questions} groups of a step into "
                "mini-batches smaller than a group; lower it, or raise train.questions"
            )
        return self

    @model_validator(mode="after")
    def _modes(self) -> Self:
        if self.train.mode == "ahead":
            if not self.algorithm.correction.chosen:
                raise ValueError(
                    "train.mode = ahead samples with weights one version old; choose algorithm.correction.level = token"
                )
            if self.engine.stale_cache == "keep":
                raise ValueError("engine.stale_cache = keep has no effect with train.mode = ahead; remove it")
        if self.train.keep_best and not self.evaluate.every:
            raise ValueError("train.keep_best has no effect with evaluate.every = 0; set it to a number of steps")
        if self.train.resample and self.algorithm.advantage not in GROUPED:
            raise ValueError(
                f"train.resample has no effect with algorithm.advantage = {self.algorithm.advantage}; remove it"
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
        if self.agent.method in UNSEARCHED:
            if named:
                raise ValueError(
                    f"data.corpus and retrieval.index have no effect with agent.method = {self.agent.method}, which "
                    "searches nothing; remove them"
                )
            return self
        if named == 2 or (named == 0 and self.retrieval.replay is None):
            raise ValueError("give either data.corpus or retrieval.index: an index names its own corpus")
        return self
