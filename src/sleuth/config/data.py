"""Settings of the data: a generated world, or files with a corpus and questions."""

from typing import Annotated

from pydantic import Field

from sleuth.config.section import Section, Seed

FILES = ("corpus", "train", "test")
Questions = str | list[str]  # one file or several


class WorldConfig(Section):
    passages: Annotated[int, Field(ge=100, le=1_000_000, description="Passages of the generated encyclopedia.")] = 2000
    questions: Annotated[int, Field(gt=0, le=10_000_000, description="Number of training questions.")] = 4000
    seed: Annotated[Seed, Field(description="Seed of the generated world.")] = 0


class DataConfig(Section):
    corpus: Annotated[str | None, Field(description="Corpus JSONL; not with a generated world.")] = None
    train: Annotated[
        Questions | None, Field(description="Training questions: a file or a list of files; not with a world.")
    ] = None
    test: Annotated[
        Questions | None, Field(description="Held-out questions: a file or a list of files; not with a world.")
    ] = None
    shuffle: Annotated[bool, Field(description="Shuffle the training questions every epoch, by train.seed.")] = True

    def files(self, name: str) -> tuple[str, ...]:
        """Paths of `train` or `test`, in order."""
        value = getattr(self, name)
        return (value,) if isinstance(value, str) else tuple(value or ())
