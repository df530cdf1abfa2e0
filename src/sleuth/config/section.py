"""A table of the recipe: strict and frozen, with the kinds of numbers that tables share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Upper bounds keep a typing error from using up the memory, or from overflowing where it is computed with.
MOST = 2**31 - 1
LARGEST = 1e6

Positive = Annotated[int, Field(gt=0, le=MOST)]
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
Episodes = Annotated[int, Field(gt=0, le=1_000_000)]  # or whatever else is held in memory at once
TokenCount = Annotated[int, Field(gt=0, le=2**24)]
Factor = Annotated[float, Field(gt=0, le=LARGEST)]
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
