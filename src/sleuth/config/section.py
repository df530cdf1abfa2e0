"""A table of the recipe: strict and frozen, with the kinds of numbers that tables share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of the recipe: unknown keys are refused, values are of the type declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def _without_effect(self, when: str, *names: str, table: str = "") -> None:
        """Refuses knobs that were set although `when` makes them meaningless."""
        for name in names:
            if name in self.model_fields_set:
                raise ValueError(f"{table}{name} has no effect with {when}; remove it")
