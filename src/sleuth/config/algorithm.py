"""Settings of the RL algorithm: advantage, loss, KL penalty, off-policy correction and critic."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import (
    MAX_FLOAT,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)

GROUPED = ("grpo", "dr_grpo", "rloo")  # advantages that compare the samples of one question
UNGROUPED = ("reinforce", "reinforce_pp", "gae")  # advantages that need no group
LEVELS = ("auto", "none", "token", "sequence", "geometric")


class KLConfig(Section):
    place: Annotated[
        Literal["none", "loss", "reward"], Field(description="Where to apply the KL penalty against the reference.")
    ] = "none"
    estimator: Annotated[
        Literal["k1", "k2", "k3"] | None,
        Field(description="Schulman's KL estimator: k1 in the reward, k2 or k3 in the loss (default there: k3)."),
    ] = None
    coefficient: Annotated[PositiveFloat, Field(description="KL coefficient; the initial one if it is adaptive.")] = (
        0.001
    )
    target: Annotated[
        PositiveFloat | None,
        Field(description="Target KL per token of an adaptive coefficient. Default: the coefficient is fixed."),
    ] = None
    horizon: Annotated[PositiveInt, Field(description="Episodes over which the coefficient adapts.")] = 10_000

    @property
    def resolved_estimator(self) -> Literal["k1", "k2", "k3"]:
        return self.estimator or ("k1" if self.place == "reward" else "k3")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.place == "none":
            self._reject_unused("algorithm.kl.place = none", "estimator", "coefficient", "target", "horizon")
        if self.target is None:
            self._reject_unused("no algorithm.kl.target", "horizon")
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator = k1 has no effect with algorithm.kl.place = loss, where its expected gradient is zero; "
                "use k2 or k3, or algorithm.kl.place = reward"
            )
        if self.place == "reward" and self.estimator in ("k2", "k3"):
            raise ValueError(
                f"estimator = {self.estimator} with algorithm.kl.place = reward also penalises tokens that became too "
                "unlikely, so it does not keep the policy near the reference; remove it to use k1, or set "
                "algorithm.kl.place = loss"
            )
        return self


class CorrectionConfig(Section):
    level: Annotated[
        str,
        Field(
            description="Unit of the trainer/engine importance ratio: token, sequence, geometric, none, or "
            "import:package.function; auto: none, or token if a vLLM engine's logprobs differ."
        ),
    ] = "auto"
    action: Annotated[
        Literal["truncate", "mask", "clip"],
        Field(description="Ratios out of bounds: truncate at high (TIS), mask (MIS, IcePop), or clip to both bounds."),
    ] = "truncate"
    low: Annotated[PositiveFloat | None, Field(description="Lower bound of the ratio. Default: none.")] = None
    high: Annotated[PositiveFloat, Field(description="Upper bound of the ratio.")] = 2.0
    veto: Annotated[
        PositiveFloat | None,
        Field(description="Drop a trajectory if any of its token ratios is below this. Default: never."),
    ] = None
    reject: Annotated[
        Literal["token", "sequence", "geometric"] | None,
        Field(description="Also reject units at this level whose ratio is out of bounds. Default: no rejection."),
    ] = None
    reject_low: Annotated[PositiveFloat, Field(description="Lower bound of the ratio for rejection.")] = 0.5
    reject_high: Annotated[PositiveFloat, Field(description="Upper bound of the ratio for rejection.")] = 2.0
    normalise: Annotated[bool, Field(description="Scale the weights of a step to mean 1 before rejection.")] = False

    @property
    def enabled(self) -> bool:
        """Whether a correction is applied regardless of the engine's measured parity."""
        return self.level not in ("auto", "none")

    @model_validator(mode="after")
    def _check(self) -> Self:
        options = tuple(name for name in type(self).model_fields if name != "level")
        if self.level not in LEVELS and not self.level.startswith("import:"):
            raise ValueError(f"level = {self.level!r} is unknown; use {', '.join(LEVELS)} or import:package.function")
        if not self.enabled or self.level not in LEVELS:
            self._reject_unused(f"algorithm.correction.level = {self.level}", *options)
        if self.action == "truncate":
            self._reject_unused("algorithm.correction.action = truncate", "low")
        if self.reject is None:
            self._reject_unused("no algorithm.correction.reject", "reject_low", "reject_high")
        if self.action == "clip" and self.low is None:
            raise ValueError("action = clip needs two bounds; set algorithm.correction.low too")
        for low, high in (("low", "high"), ("reject_low", "reject_high")):
            lower, upper = getattr(self, low), getattr(self, high)
            if lower is not None and lower >= upper:
                raise ValueError(f"{low} = {lower:g} is not below {high} = {upper:g}; lower it")
        return self


class CriticConfig(Section):
    policy: Annotated[
        str | None, Field(description="Initial model of the critic: folder or hub name. Default: model.policy.")
    ] = None
    learning_rate: Annotated[PositiveFloat, Field(description="Peak learning rate of the critic.")] = 1e-5
    rate_warmup: Annotated[
        Fraction | None,
        Field(description="Fraction of steps with linear learning-rate warmup of the critic. Default: train.warmup."),
    ] = None
    gamma: Annotated[Fraction, Field(description="Discount factor per sampled token.")] = 1.0
    lam: Annotated[Fraction, Field(description="GAE lambda: 1 uses full returns, 0 the critic's next value.")] = 1.0
    clip: Annotated[PositiveFloat, Field(description="Value clipping range of one step.")] = 0.5
    warmup: Annotated[NonNegativeInt, Field(description="Steps in which only the critic is trained.")] = 0


class AlgorithmConfig(Section):
    advantage: Annotated[
        str,
        Field(
            description="Advantage estimator: grpo, dr_grpo, rloo, reinforce, reinforce_pp, gae (PPO), or "
            "import:package.function."
        ),
    ] = "grpo"
    loss: Annotated[str, Field(description="Policy loss: clipped, gspo, cispo, or import:package.function.")] = (
        "clipped"
    )
    clip_low: Annotated[float, Field(gt=0, lt=1, description="Lower clip range: ratio >= 1 - clip_low.")] = 0.2
    clip_high: Annotated[PositiveFloat, Field(description="Upper clip range: ratio <= 1 + clip_high.")] = 0.2
    clip_dual: Annotated[
        float | None,
        Field(gt=1, le=MAX_FLOAT, description="Dual clip: ratio bound for negative advantages. Default: none."),
    ] = None
    negative_weight: Annotated[Fraction, Field(description="Loss weight of tokens with a negative advantage.")] = 1.0
    entropy: Annotated[float, Field(ge=0, le=MAX_FLOAT, description="Entropy bonus coefficient.")] = 0.0
    normalise: Annotated[
        Literal["token", "sequence", "constant"],
        Field(description="Loss aggregation: mean over tokens, over sequences, or sum / constant."),
    ] = "token"
    constant: Annotated[PositiveInt, Field(description="Divisor per trajectory for normalise = constant.")] = 1024
    overlong: Annotated[
        Literal["keep", "filter", "shape"],
        Field(description="Episodes cut off by the token limit: keep, filter from the loss, or shape the reward."),
    ] = "keep"
    overlong_tokens: Annotated[
        PositiveInt, Field(description="Tokens before the context limit over which the penalty grows to 1.")
    ] = 128
    old: Annotated[
        Literal["auto", "engine", "recompute"],
        Field(description="Old logprobs: the engine's or recomputed; auto: the engine's unless they differ."),
    ] = "auto"
    origin_mask: Annotated[
        bool, Field(description="Train on sampled tokens only; false also trains on retrieved text (ablation).")
    ] = True
    kl: KLConfig = KLConfig()
    correction: CorrectionConfig = CorrectionConfig()
    critic: CriticConfig = CriticConfig()

    @property
    def recomputes(self) -> bool:
        """Whether old logprobs always come from a forward pass of the trainer."""
        return self.old == "recompute" or self.correction.enabled or not self.origin_mask

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.normalise != "constant":
            self._reject_unused(f"algorithm.normalise = {self.normalise}", "constant")
        if self.overlong != "shape":
            self._reject_unused(f"algorithm.overlong = {self.overlong}", "overlong_tokens")
        if self.loss != "clipped":
            self._reject_unused(f"algorithm.loss = {self.loss}", "clip_dual")
        if self.advantage != "gae":
            self.critic._reject_unused(
                f"algorithm.advantage = {self.advantage}", *CriticConfig.model_fields, table="critic."
            )
        return self

    @model_validator(mode="after")
    def _check_old(self) -> Self:
        if self.old == "engine" and self.correction.enabled:
            raise ValueError("old = engine leaves algorithm.correction nothing to correct; remove one of the two")
        if not self.origin_mask and (self.old == "engine" or self.correction.enabled or self.advantage == "gae"):
            raise ValueError(
                "origin_mask = false trains on tokens that no engine sampled; remove algorithm.old = engine, "
                "algorithm.correction and algorithm.advantage = gae"
            )
        return self
