"""Settings of the guards, which watch a run and act when a threshold is crossed."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import MAX_FLOAT, Fraction, PositiveFloat, PositiveInt, Section

# Guards that inspect the episodes or the gradient can skip the update; the other guards run after the update.
EarlyAction = Literal["off", "warn", "skip", "rollback", "stop"]
LateAction = Literal["off", "warn", "rollback", "stop"]
WATCHED = (
    "gradient_norm", "entropy", "likelihood", "malformed", "answerless",
    "search_failures", "engine_failures", "function_failures", "unusable", "parity",
)  # fmt: skip


class GuardsConfig(Section):
    """Thresholds and actions of the guards; see docs/guards.md."""

    non_finite: Literal["skip", "rollback", "stop"] = "rollback"
    """Action on a non-finite loss, gradient or weight."""
    gradient_norm: Annotated[float, Field(gt=1, le=MAX_FLOAT)] = 20.0
    """Maximum gradient norm, as a multiple of its recent median."""
    gradient_norm_action: EarlyAction = "skip"
    """Action when gradient_norm is exceeded."""
    entropy: Fraction = 0.02
    """Minimum entropy, as a fraction of its first value."""
    entropy_action: LateAction = "warn"
    """Action when the entropy falls below the minimum."""
    likelihood: PositiveFloat = 0.3
    """Maximum drop, in nats, of the mean logprob of right answers from its highest value."""
    likelihood_action: LateAction = "warn"
    """Action when likelihood is exceeded."""
    malformed: Fraction = 0.5
    """Maximum increase of the malformed rate over its lowest value so far."""
    malformed_action: EarlyAction = "rollback"
    """Action when malformed is exceeded."""
    answerless: Fraction = 0.5
    """Maximum increase of the rate of episodes without an answer over its lowest value."""
    answerless_action: EarlyAction = "rollback"
    """Action when answerless is exceeded."""
    search_failures: Fraction = 0.05
    """Maximum fraction of a step's episodes lost to search failures."""
    search_failures_action: EarlyAction = "stop"
    """Action when search_failures is exceeded."""
    engine_failures: Fraction = 0.05
    """Maximum fraction of a step's episodes lost to engine failures."""
    engine_failures_action: EarlyAction = "stop"
    """Action when engine_failures is exceeded."""
    function_failures: Fraction = 0.05
    """Maximum fraction of a step's episodes lost to failures of user code (import:)."""
    function_failures_action: EarlyAction = "stop"
    """Action when function_failures is exceeded."""
    unusable: Fraction = 0.25
    """Maximum fraction of a step's episodes lost to failures of any kind."""
    unusable_action: EarlyAction = "stop"
    """Action when unusable is exceeded."""
    parity: PositiveFloat = 0.05
    """Maximum KL (k3) between the logprobs of engine and trainer."""
    parity_action: LateAction = "warn"
    """Action when parity is exceeded."""
    window: PositiveInt = 20
    """Steps over which medians and running means are taken."""
    rollbacks: PositiveInt = 3
    """Maximum rollbacks per run; the next one stops it."""
    rollback_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Learning-rate multiplier after each rollback."""

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
