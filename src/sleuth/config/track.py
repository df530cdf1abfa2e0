"""Where metrics go besides the run folder."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import Section

TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow")


class TrackConfig(Section):
    to: Annotated[
        str, Field(description="where metrics go besides metrics.jsonl: wandb, tensorboard, trackio, mlflow, by commas")
    ] = ""
    project: Annotated[str, Field(min_length=1, description="name they are collected under there")] = "sleuth"

    @property
    def named(self) -> tuple[str, ...]:
        """The trackers asked for, in order."""
        return tuple(name.strip() for name in self.to.split(",")) if self.to.strip() else ()

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.named:
            if name not in TRACKERS:
                raise ValueError(f"to = {name!r} is no tracker; expected some of {', '.join(TRACKERS)}, by commas")
        if len(set(self.named)) < len(self.named):
            raise ValueError(f"to = {self.to!r} names a tracker twice; name each once")
        if not set(self.named) - {"tensorboard"}:
            self._without_effect(f"track.to = {self.to!r}", "project")
        return self
