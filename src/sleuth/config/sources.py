"""Where passages and questions come from: a generated world, or files."""

from typing import Annotated

from pydantic import Field

from sleuth.config.section import Section, Seed


class WorldConfig(Section):
    passages: Annotated[int, Field(ge=100, le=1_000_000, description="passages of the generated encyclopedia")] = 2000
    questions: Annotated[int, Field(gt=0, le=10_000_000, description="training questions made from it")] = 4000
    seed: Annotated[Seed, Field(description="the same seed gives the same world")] = 0


class DataConfig(Section):
    corpus: Annotated[str | None, Field(description="corpus JSONL; not with a generated world")] = None
    train: Annotated[str | None, Field(description="questions to train on, JSONL; not with a generated world")] = None
    test: Annotated[str | None, Field(description="held-out questions, JSONL; not with a generated world")] = None
    shuffle: Annotated[bool, Field(description="shuffle the training questions anew each epoch, by train.seed")] = True
