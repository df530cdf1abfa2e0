"""A whole run: build its parts, train to the last step, write the summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.runs.run import Run
from sleuth.train.backend import LOCAL, RolloutBackend
from sleuth.train.loop import train
from sleuth.train.observer import RunObserver
from sleuth.train.parts import resume_run, start_run
from sleuth.train.ranks import Ranks
from sleuth.train.summary import write_summary


def train_session(
    begun: Run | Config,
    folder: Path,
    observer: RunObserver,
    changes: Sequence[str],
    started: float,
    ranks: Ranks,
    backend: RolloutBackend = LOCAL,
) -> tuple[Path, Mapping[str, Any] | None]:
    """Start or resume a run as one of its ranks; return the folder, and on the first rank the summary.

    `started` is the `time.monotonic` start of the command.
    """
    ((folder,), *_) = ranks.gather([folder], "the name of the run")
    match begun:
        case Run():
            parts = resume_run(begun, observer, changes, ranks, backend)
        case Config():
            if backend is LOCAL and (given := sorted(begun.cluster.model_fields_set)):
                raise ConfigError(f"cluster.{given[0]} has no effect without --ray; add --ray, or remove [cluster]")
            parts = start_run(begun, folder, observer, ranks, backend)
    outcome = train(parts, observer, started)
    summary = write_summary(parts, outcome) if ranks.rank == 0 else None
    ranks.close()
    return folder, summary
