"""Base class of the config sections, and the bounded number types that they share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Upper bounds: a typo must not exhaust memory or overflow a computation.
MAX_INT = 2**31 - 1
MAX_FLOAT = 1e6

PositiveInt = Annotated[int, Field(gt=0, le=MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INT)]
EpisodeCount = Annotated[int, Field(gt=0, le=1_000_000)]  # items held in memory at the same time
TokenCount = Annotated[int, Field(gt=0, le=2**24)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_FLOAT)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_FLOAT)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of the recipe: strict, frozen, and without unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def _reject_unused(self, condition: str, *names: str, table: str = "") -> None:
        """Raise ValueError if a setting was given that has no effect under `condition`."""
        for name in names:
            if name in self.model_fields_set:
                raise ValueError(f"{table}{name} has no effect with {condition}; remove it")
