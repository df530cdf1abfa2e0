"""A stage of a pipeline: a `sleuth` command, its outputs, and whether they exist."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, done when all of `outputs` exist, or when `replaced_by` does.

    `words` are the arguments of its `sleuth` command; `resume` are those that continue it if `begun` exists. A stage
    without words is an action of the pipeline. `reads` are inputs that the words do not name. With `capture`, the
    command's standard output becomes the file. An `optional` stage that makes nothing exits with NothingMade's code and
    leaves an empty file. `replaced_by` is an output of a later stage that no longer needs this stage's outputs.
    `space` is the disk space in bytes that its outputs need, 0 if that is unknown or little.
    """

    name: str
    purpose: str
    outputs: tuple[Path, ...]
    words: tuple[str, ...] = ()
    begun: Path | None = None
    resume: tuple[str, ...] = ()
    capture: bool = False
    optional: bool = False
    reads: tuple[Path, ...] = ()
    replaced_by: Path | None = None
    space: int = 0

    @property
    def is_done(self) -> bool:
        if self.replaced_by is not None and self.replaced_by.exists():
            return True
        return all(output.exists() for output in self.outputs)

    @property
    def command(self) -> tuple[str, ...]:
        return self.resume if self.begun is not None and self.begun.exists() else self.words
