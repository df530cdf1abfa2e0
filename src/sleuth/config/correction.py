"""The correction of what engine and trainer make of the same token."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Factor, Section


class CorrectionConfig(Section):
    level: Annotated[
        Literal["auto", "none", "token", "sequence", "geometric"],
        Field(
            description="what the ratio of trainer to engine is taken over; none: no correction; auto: none, with "
            "engine.kind = vllm token where logprobs differ"
        ),
    ] = "auto"
    action: Annotated[
        Literal["truncate", "mask", "clip"],
        Field(description="ratios outside the bounds: held below the upper, dropped, or held between both"),
    ] = "truncate"
    low: Annotated[Factor | None, Field(description="lower bound of the ratio; absent: none")] = None
    high: Annotated[Factor, Field(description="upper bound of the ratio")] = 2.0
    veto: Annotated[
        Factor | None, Field(description="a trajectory with one token's ratio below this is dropped; absent: none")
    ] = None

    @property
    def chosen(self) -> bool:
        """Whether there is one whatever the engine turns out to be."""
        return self.level not in ("auto", "none")

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.chosen:
            self._without_effect(f"algorithm.correction.level = {self.level}", "action", "low", "high", "veto")
        if self.action == "truncate":
            self._without_effect("algorithm.correction.action = truncate", "low")
        if self.action == "clip" and self.low is None:
            raise ValueError("action = clip holds the ratio between two bounds; give algorithm.correction.low too")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}; lower it")
        return self
