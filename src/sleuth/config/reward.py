"""Settings of the reward."""

from typing import Self

from pydantic import model_validator

from sleuth.config.section import EpisodeCount, Fraction, NonNegativeFloat, PositiveFloat, Section


class RewardConfig(Section):
    answer: str = "em"
    """Answer reward: em, f1, cover_em, or import:package.function (plain or async)."""
    format: bool | Fraction = False
    """true: the tiers of Search-R1 v0.3 (right/wrong x valid/invalid format); a number: the reward of a wrong answer
    in valid format."""
    retrieval: Fraction = 0.0
    """Bonus for a wrong answer in valid format if a gold answer was retrieved."""
    abstain: Fraction | None = None
    """Reward for answering "I don't know" to an answerable question; 1 to one marked as unanswerable, where any other
    answer gets 0. Default: abstaining has no meaning."""
    many_answers: bool = False
    """Divide the reward by four if a response has more than ten answer tags."""
    useless_search: NonNegativeFloat = 0.0
    """Penalty for each search that returns no passage that is new to the episode."""
    concurrency: EpisodeCount = 64
    """Maximum calls of an async reward function in flight."""
    rate: PositiveFloat | None = None
    """Maximum calls of an async reward function per second. Default: no limit."""
    deadline: PositiveFloat = 120.0
    """Maximum seconds per call of an async reward function."""

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.format is False:
            self._reject_unused("reward.format = false", "retrieval")
        if not self.answer.startswith("import:"):
            self._reject_unused(f"reward.answer = {self.answer}", "concurrency", "rate", "deadline")
        return self
