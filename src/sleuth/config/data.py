"""Settings of the data: a generated world, or files with a corpus and questions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import PositiveFloat, Section, Seed

FILES = ("corpus", "train", "test")
Questions = str | list[str]  # one file or several
QuestionType = Literal["one_hop", "two_hop", "three_hop", "four_hop", "comparison", "yes_no"]


class WorldConfig(Section):
    passages: Annotated[int, Field(ge=100, le=1000000)] = 2000
    """Passages of the generated encyclopedia."""
    questions: Annotated[int, Field(gt=0, le=10000000)] = 4000
    """Number of training questions."""
    seed: Seed = 0
    """Seed of the generated world."""
    mixture: Annotated[dict[QuestionType, PositiveFloat], Field(min_length=1)] | None = None
    """Weights of the question types one_hop, two_hop, three_hop, four_hop, comparison and yes_no. Default: all but
    four_hop."""


class DataConfig(Section):
    corpus: str | None = None
    """Corpus JSONL; not with a generated world."""
    train: Questions | None = None
    """Training questions: a file or a list of files; not with a world."""
    test: Questions | None = None
    """Held-out questions: a file or a list of files; not with a world."""
    weights: list[PositiveFloat] = []  # noqa: RUF012  pydantic copies it
    """Sampling weights of the files in data.train. Default: proportional to their sizes."""
    shuffle: bool = True
    """Shuffle the training questions every epoch, by train.seed."""

    def files(self, name: str) -> tuple[str, ...]:
        """Paths of `train` or `test`, in order."""
        value = getattr(self, name)
        return (value,) if isinstance(value, str) else tuple(value or ())

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.weights and len(self.weights) != (count := len(self.files("train"))):
            raise ValueError(f"weights = {self.weights} needs one number for each of the {count} files of data.train")
        if self.weights and not self.shuffle:
            raise ValueError(
                "weights has no effect with data.shuffle = false, which asks the files in order; remove it"
            )
        return self
