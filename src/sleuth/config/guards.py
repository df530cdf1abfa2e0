"""What a run watches itself by, and what it does then."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import LARGEST, Factor, Positive, Section, Share

# Guards that see a step's episodes or its gradient can keep the step from being learned; the others come after it.
EarlyAction = Literal["off", "warn", "skip", "rollback", "stop"]
LateAction = Literal["off", "warn", "rollback", "stop"]
WATCHED = (
    "gradient_norm", "entropy", "likelihood", "malformed", "answerless",
    "search_failures", "engine_failures", "function_failures", "unusable", "parity",
)  # fmt: skip


class GuardsConfig(Section):
    """Thresholds stand beside what is done where they are crossed; docs/guards.md tells what each guard sees."""

    non_finite: Annotated[
        Literal["skip", "rollback", "stop"], Field(description="on a loss or a gradient that is no number")
    ] = "rollback"
    gradient_norm: Annotated[
        float, Field(gt=1, le=LARGEST, description="times its median over the window that a gradient norm may be")
    ] = 20.0
    gradient_norm_action: Annotated[EarlyAction, Field(description="on a larger one")] = "skip"
    entropy: Annotated[Share, Field(description="share of its first value that the entropy may fall to")] = 0.02
    entropy_action: Annotated[LateAction, Field(description="on a lower one")] = "warn"
    likelihood: Annotated[
        Factor, Field(description="nats that the mean logprob of the best answers may fall below its highest")
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
    engine_failures: Annotated[
        Share, Field(description="share of a step's episodes that may be lost to engine failures")
    ] = 0.05
    engine_failures_action: Annotated[EarlyAction, Field(description="on a larger share")] = "stop"
    function_failures: Annotated[
        Share, Field(description="share of a step's episodes that may be lost to a function of your own (import:)")
    ] = 0.05
    function_failures_action: Annotated[EarlyAction, Field(description="on a larger share")] = "stop"
    unusable: Annotated[
        Share, Field(description="share of a step's episodes that may be lost to failures of any kind")
    ] = 0.25
    unusable_action: Annotated[EarlyAction, Field(description="on a larger share")] = "stop"
    parity: Annotated[Factor, Field(description="distance (k3) that logprobs of engine and trainer may be apart")] = (
        0.05
    )
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
