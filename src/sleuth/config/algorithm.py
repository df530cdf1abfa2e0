"""How rewards become a loss: the advantage, the loss, and what bounds it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.correction import CorrectionConfig
from sleuth.config.critic import CriticConfig
from sleuth.config.kl import KLConfig
from sleuth.config.section import LARGEST, Factor, Positive, Section, Share

GROUPED = ("grpo", "dr_grpo", "rloo")  # advantages that compare the samples of one question with each other
UNGROUPED = ("reinforce", "reinforce_pp", "gae")  # and those that do not


class AlgorithmConfig(Section):
    advantage: Annotated[
        str, Field(description="grpo, dr_grpo, rloo, reinforce, reinforce_pp, gae (PPO), or import:package.function")
    ] = "grpo"
    loss: Annotated[str, Field(description="clipped, gspo, cispo, or import:package.function")] = "clipped"
    clip_low: Annotated[float, Field(gt=0, lt=1, description="the ratio is held above 1 - clip_low")] = 0.2
    clip_high: Annotated[Factor, Field(description="the ratio is held below 1 + clip_high")] = 0.2
    clip_dual: Annotated[
        float | None,
        Field(gt=1, le=LARGEST, description="losses of negative advantages are held below this ratio; absent: not"),
    ] = None
    negative_weight: Annotated[Share, Field(description="weight of tokens with a negative advantage")] = 1.0
    entropy: Annotated[float, Field(ge=0, le=LARGEST, description="weight of the entropy bonus")] = 0.0
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
