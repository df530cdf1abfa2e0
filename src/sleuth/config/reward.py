"""What an answer is worth."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import Section, Share


class RewardConfig(Section):
    answer: Annotated[str, Field(description="em, f1, cover_em, or import:package.function")] = "em"
    format: Annotated[
        bool, Field(description="the tiers of Search-R1 v0.3: right/wrong times valid/invalid format")
    ] = False
    retrieval: Annotated[
        Share, Field(description="added when the answer is wrong, the format valid, and a gold answer was shown")
    ] = 0.0
    many_answers: Annotated[
        bool, Field(description="divide by four when a response holds more than ten answer tags")
    ] = False

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.format:
            self._without_effect("reward.format = false", "retrieval")
        return self
