"""Settings of the RL algorithm: advantage, loss, penalties, off-policy correction and critic."""

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

GROUPED = ("grpo", "dr_grpo", "rloo", "tree_grpo")  # advantages that compare the samples of one question
STEP_GROUPED = ("grpo", "dr_grpo", "rloo")  # those that can also compare the turns in one state
UNGROUPED = ("reinforce", "reinforce_pp", "gae")  # advantages that need no group
LEVELS = ("auto", "none", "token", "sequence", "geometric")


class KLConfig(Section):
    place: Literal["none", "loss", "reward"] = "none"
    """Where to apply the KL penalty against the reference."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """Schulman's KL estimator: k1 in the reward, k2 or k3 in the loss (default there: k3)."""
    coefficient: PositiveFloat = 0.001
    """KL coefficient; the initial value if adaptive."""
    target: PositiveFloat | None = None
    """Target KL per token for an adaptive coefficient. Default: fixed coefficient."""
    horizon: PositiveInt = 10_000
    """Episodes over which the coefficient adapts."""

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


class LikelihoodConfig(Section):
    penalty: Literal["none", "llds", "sapo"] = "none"
    """Penalty on good actions that became less likely than when they were sampled."""
    coefficient: PositiveFloat | None = None
    """Coefficient of the penalty. Default: that of the authors, 0.2 (llds) or 0.1 (sapo)."""
    threshold: PositiveFloat = 1.0
    """Ratio to the sampling probability below which a token is penalised."""
    level: Literal["action", "trajectory"] = "action"
    """llds: the unit whose likelihood must have dropped as a whole."""

    @property
    def resolved_coefficient(self) -> float:
        return self.coefficient or {"none": 0.0, "llds": 0.2, "sapo": 0.1}[self.penalty]

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.penalty == "none":
            self._reject_unused("algorithm.likelihood.penalty = none", "coefficient", "threshold")
        if self.penalty != "llds":
            self._reject_unused(f"algorithm.likelihood.penalty = {self.penalty}", "level")
        return self


class TeacherConfig(Section):
    policy: str | None = None
    """Teacher of failed episodes: folder or hub name of a model with the policy's vocabulary. Default: none."""
    place: Literal["reward", "loss"] = "reward"
    """Where to apply the KL penalty against the teacher."""
    coefficient: PositiveFloat = 0.001
    """KL coefficient."""
    reward_below: Annotated[float, Field(ge=-MAX_FLOAT, le=MAX_FLOAT)] = 0.1
    """Episodes with a return below this have failed."""

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.policy is None:
            self._reject_unused("no algorithm.teacher.policy", "place", "coefficient", "reward_below")
        return self


class CorrectionConfig(Section):
    level: str = "auto"
    """Unit of the trainer/engine importance ratio: token, sequence, geometric, none, or import:package.function; auto:
    none, or token if a vLLM engine's logprobs differ."""
    action: Literal["truncate", "mask", "clip"] = "truncate"
    """Ratios out of bounds: truncate at high (TIS), mask (MIS, IcePop), or clip to both bounds."""
    low: PositiveFloat | None = None
    """Lower bound of the ratio. Default: none."""
    high: PositiveFloat = 2.0
    """Upper bound of the ratio."""
    veto: PositiveFloat | None = None
    """Drop a trajectory if any of its token ratios is below this. Default: never."""
    reject: Literal["token", "sequence", "geometric"] | None = None
    """Also reject units at this level whose ratio is out of bounds. Default: no rejection."""
    reject_low: PositiveFloat = 0.5
    """Lower bound of the ratio for rejection."""
    reject_high: PositiveFloat = 2.0
    """Upper bound of the ratio for rejection."""
    normalise: bool = False
    """Scale the weights of a step to mean 1 before rejection."""

    @property
    def enabled(self) -> bool:
        """Whether a correction is applied regardless of the engine's measured parity."""
        return self.level not in ("auto", "none")

    @model_validator(mode="after")
    def _check(self) -> Self:
        options = tuple(name for name in type(self).model_fields if name != "level")
        if self.level not in LEVELS and not self.level.startswith("import:"):
            raise ValueError(
                f"level = {self.level!r:.60} is unknown; use {', '.join(LEVELS)} or import:package.function"
            )
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
    policy: str | None = None
    """Initial model of the critic: folder or hub name. Default: model.policy."""
    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of the critic."""
    rate_warmup: Fraction | None = None
    """Fraction of steps with linear learning-rate warmup of the critic. Default: train.warmup."""
    gamma: Fraction = 1.0
    """Discount factor per sampled token."""
    lam: Fraction = 1.0
    """GAE lambda: 1 uses full returns, 0 the critic's next value."""
    clip: PositiveFloat = 0.5
    """Value clipping range of one step."""
    warmup: NonNegativeInt = 0
    """Steps in which only the critic is trained."""


class InformationGainConfig(Section):
    coefficient: Annotated[float, Field(ge=0, le=MAX_FLOAT)] = 0.0
    """Weight of the turn rewards for searches that make the gold answer likelier; 0 disables them (docs/methods.md)."""
    potential: Literal["probability", "logprob"] = "probability"
    """Likelihood of the gold answer: the geometric mean of its token probabilities, or their mean logprob."""
    terminal: Literal["zero", "last"] = "zero"
    """zero: the last turn returns the sum, which keeps the optimal policy; last: episodes keep what they gained."""

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if not self.coefficient:
            self._reject_unused("algorithm.information_gain.coefficient = 0", "potential", "terminal")
        return self


class AlgorithmConfig(Section):
    advantage: str = "grpo"
    """Advantage estimator: grpo, dr_grpo, rloo, tree_grpo (with train.tree), reinforce, reinforce_pp, gae (PPO), or
    import:package.function."""
    loss: str = "clipped"
    """Policy loss: clipped, gspo, cispo, or import:package.function."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range: ratio >= 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """Upper clip range: ratio <= 1 + clip_high."""
    clip_dual: Annotated[float | None, Field(gt=1, le=MAX_FLOAT)] = None
    """Dual clip: ratio bound for negative advantages. Default: none."""
    negative_weight: Fraction = 1.0
    """Loss weight of tokens with a negative advantage."""
    entropy: Annotated[float, Field(ge=0, le=MAX_FLOAT)] = 0.0
    """Entropy bonus coefficient."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Loss aggregation: mean over tokens, over sequences, or sum / constant."""
    constant: PositiveInt = 1024
    """Divisor per trajectory for normalise = constant."""
    overlong: Literal["keep", "filter", "shape"] = "keep"
    """Episodes cut off by the token limit: keep, filter from the loss, or shape the reward."""
    overlong_tokens: PositiveInt = 128
    """Tokens before the context limit over which the penalty grows to 1."""
    old: Literal["auto", "engine", "recompute"] = "auto"
    """Old logprobs: the engine's or recomputed; auto: the engine's unless they differ."""
    origin_mask: bool = True
    """Train on sampled tokens only; false also trains on retrieved text (ablation)."""
    step_groups: Annotated[float, Field(ge=0, le=MAX_FLOAT)] = 0.0
    """Weight of the advantage of turns among those that start after the same passages (GiGPO); 0 disables it."""
    kl: KLConfig = KLConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    teacher: TeacherConfig = TeacherConfig()
    correction: CorrectionConfig = CorrectionConfig()
    critic: CriticConfig = CriticConfig()
    information_gain: InformationGainConfig = InformationGainConfig()

    @property
    def recomputes(self) -> bool:
        """Whether the trainer always recomputes the old logprobs."""
        return self.old == "recompute" or self.correction.enabled or not self.origin_mask

    @property
    def trains_without_advantage(self) -> bool:
        """Whether the loss of a token can have a gradient if its advantage is zero."""
        is_guided = self.teacher.policy is not None and self.teacher.place == "loss"
        return self.kl.place == "loss" or self.entropy > 0 or self.likelihood.penalty == "llds" or is_guided

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.normalise != "constant":
            self._reject_unused(f"algorithm.normalise = {self.normalise}", "constant")
        if self.overlong != "shape":
            self._reject_unused(f"algorithm.overlong = {self.overlong}", "overlong_tokens")
        if self.loss != "clipped":
            self._reject_unused(f"algorithm.loss = {self.loss}", "clip_dual")
        if self.step_groups and self.advantage not in STEP_GROUPED:
            raise ValueError(
                f"step_groups compares turns by algorithm.advantage = {', '.join(STEP_GROUPED)}, not "
                f"{self.advantage[:60]}; change one of the two"
            )
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
