"""Metrics to trackio: kept on this machine, or where its own settings say."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout

import trackio

from sleuth.train.tracking.session import Session

NAME = "trackio"


class TrackioTracker:
    """A trackio run, whose name is made unique: trackio knows runs by their names."""

    def __init__(self, session: Session) -> None:
        with redirect_stdout(sys.stderr):  # what it prints is no output of ours
            self._run = trackio.init(
                project=session.project,
                name=f"{session.name}-{session.id_for(NAME)}",
                config=session.settings(),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()
