"""Settings of the reward."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import EpisodeCount, Fraction, PositiveFloat, Section


class RewardConfig(Section):
    answer: Annotated[
        str, Field(description="Answer reward: em, f1, cover_em, or import:package.function (plain or async).")
    ] = "em"
    format: Annotated[
        bool | Fraction,
        Field(
            description="true: the tiers of Search-R1 v0.3 (right/wrong x valid/invalid format); a number: the reward "
            "of a wrong answer in valid format."
        ),
    ] = False
    retrieval: Annotated[
        Fraction,
        Field(description="Bonus for a wrong answer in valid format if a gold answer was retrieved."),
    ] = 0.0
    many_answers: Annotated[
        bool, Field(description="Divide the reward by four if a response has more than ten answer tags.")
    ] = False
    concurrency: Annotated[EpisodeCount, Field(description="Maximum calls of an async reward function in flight.")] = 64
    rate: Annotated[
        PositiveFloat | None,
        Field(description="Maximum calls of an async reward function per second. Default: no limit."),
    ] = None
    deadline: Annotated[
        PositiveFloat, Field(description="Seconds after which a call of an async reward function has failed.")
    ] = 120.0

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.format is False:
            self._reject_unused("reward.format = false", "retrieval")
        if not self.answer.startswith("import:"):
            self._reject_unused(f"reward.answer = {self.answer}", "concurrency", "rate", "deadline")
        return self
