"""The critic of PPO, which learns beside the policy."""

from typing import Annotated

from pydantic import Field

from sleuth.config.section import Factor, NonNegative, Section, Share


class CriticConfig(Section):
    policy: Annotated[
        str | None, Field(description="the model the critic begins as: folder or name; absent: that of model.policy")
    ] = None
    learning_rate: Annotated[Factor, Field(description="of AdamW, for the critic")] = 1e-5
    rate_warmup: Annotated[
        Share | None, Field(description="share of the steps over which the critic's rate rises; absent: train.warmup")
    ] = None
    gamma: Annotated[Share, Field(description="what a later reward is worth, from one sampled token to the next")] = 1.0
    lam: Annotated[Share, Field(description="1: advantages of whole returns; 0: of the critic's next value")] = 1.0
    clip: Annotated[Factor, Field(description="values move by at most this in one step")] = 0.5
    warmup: Annotated[NonNegative, Field(description="steps in which the critic learns alone")] = 0
