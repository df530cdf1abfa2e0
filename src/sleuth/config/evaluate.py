"""When held-out questions are asked, and how many."""

from typing import Annotated

from pydantic import Field

from sleuth.config.section import Episodes, NonNegative, Section


class EvaluateConfig(Section):
    questions: Annotated[Episodes, Field(description="held-out questions asked in an evaluation")] = 200
    every: Annotated[NonNegative, Field(description="steps between evaluations during training; 0 for none")] = 0
    before: Annotated[bool, Field(description="ask them before training too")] = True
    after: Annotated[bool, Field(description="ask them after training too")] = True
