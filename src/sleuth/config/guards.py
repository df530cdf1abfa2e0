"""Settings of the guards, which watch a run and act when a threshold is crossed."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import MAX_FLOAT, Fraction, PositiveFloat, PositiveInt, Section

# Guards that inspect the episodes or the gradient can skip the update; the others see it only afterwards.
EarlyAction = Literal["off", "warn", "skip", "rollback", "stop"]
LateAction = Literal["off", "warn", "rollback", "stop"]
WATCHED = (
    "gradient_norm", "entropy", "likelihood", "malformed", "answerless",
    "search_failures", "engine_failures", "function_failures", "unusable", "parity",
)  # fmt: skip


class GuardsConfig(Section):
    """Each threshold comes with an action; docs/guards.md describes every guard."""

    non_finite: Annotated[
        Literal["skip", "rollback", "stop"], Field(description="Action on a non-finite loss, gradient or weight.")
    ] = "rollback"
    gradient_norm: Annotated[
        float, Field(gt=1, le=MAX_FLOAT, description="Maximum gradient norm, as a multiple of its recent median.")
    ] = 20.0
    gradient_norm_action: Annotated[EarlyAction, Field(description="Action when gradient_norm is exceeded.")] = "skip"
    entropy: Annotated[Fraction, Field(description="Minimum entropy, as a fraction of its first value.")] = 0.02
    entropy_action: Annotated[LateAction, Field(description="Action when the entropy falls below it.")] = "warn"
    likelihood: Annotated[
        PositiveFloat,
        Field(description="Maximum drop, in nats, of the mean logprob of right answers from its highest value."),
    ] = 0.3
    likelihood_action: Annotated[LateAction, Field(description="Action when likelihood is exceeded.")] = "warn"
    malformed: Annotated[
        Fraction, Field(description="Maximum increase of the malformed rate over its lowest value so far.")
    ] = 0.5
    malformed_action: Annotated[EarlyAction, Field(description="Action when malformed is exceeded.")] = "rollback"
    answerless: Annotated[
        Fraction, Field(description="Maximum increase of the rate of episodes without an answer over its lowest value.")
    ] = 0.5
    answerless_action: Annotated[EarlyAction, Field(description="Action when answerless is exceeded.")] = "rollback"
    search_failures: Annotated[
        Fraction, Field(description="Maximum fraction of a step's episodes lost to search failures.")
    ] = 0.05
    search_failures_action: Annotated[EarlyAction, Field(description="Action when search_failures is exceeded.")] = (
        "stop"
    )
    engine_failures: Annotated[
        Fraction, Field(description="Maximum fraction of a step's episodes lost to engine failures.")
    ] = 0.05
    engine_failures_action: Annotated[EarlyAction, Field(description="Action when engine_failures is exceeded.")] = (
        "stop"
    )
    function_failures: Annotated[
        Fraction, Field(description="Maximum fraction of a step's episodes lost to failures of user code (import:).")
    ] = 0.05
    function_failures_action: Annotated[
        EarlyAction, Field(description="Action when function_failures is exceeded.")
    ] = "stop"
    unusable: Annotated[
        Fraction, Field(description="Maximum fraction of a step's episodes lost to failures of any kind.")
    ] = 0.25
    unusable_action: Annotated[EarlyAction, Field(description="Action when unusable is exceeded.")] = "stop"
    parity: Annotated[
        PositiveFloat, Field(description="Maximum KL (k3) between the logprobs of engine and trainer.")
    ] = 0.05
    parity_action: Annotated[LateAction, Field(description="Action when parity is exceeded.")] = "warn"
    window: Annotated[PositiveInt, Field(description="Steps over which medians and running means are taken.")] = 20
    rollbacks: Annotated[PositiveInt, Field(description="Maximum rollbacks per run; the next one stops it.")] = 3
    rollback_rate: Annotated[float, Field(gt=0, le=1, description="Learning-rate multiplier after each rollback.")] = (
        0.5
    )

    @property
    def actions(self) -> dict[str, str]:
        """Action of each guard by name."""
        return {"non_finite": self.non_finite, **{name: getattr(self, f"{name}_action") for name in WATCHED}}

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        for name in WATCHED:
            if self.actions[name] == "off":
                self._reject_unused(f"guards.{name}_action = off", name)
        if self.gradient_norm_action == "off" and self.likelihood_action == "off":
            self._reject_unused("guards.gradient_norm_action = off and likelihood_action = off", "window")
        if "rollback" not in self.actions.values():
            self._reject_unused("no guard whose action is rollback", "rollbacks", "rollback_rate")
        return self
