"""The trainer rank: runs the training loop as one process of a torch group, as a threaded Ray actor."""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from sleuth.cluster import ray_client
from sleuth.cluster.actor import Failure, Greeting, enter, greet
from sleuth.config.tree import Config
from sleuth.errors import TrainingStopped, UserError
from sleuth.model.memory import describe_out_of_memory
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run
from sleuth.train.backend import RolloutBackend
from sleuth.train.observer import RunObserver, SilentObserver
from sleuth.train.ranks import ALONE, Ranks, Torchrun, describe_disconnect
from sleuth.train.session import train_session

Event = tuple[str, tuple[Any, ...]]  # a method of RunObserver and its arguments


@dataclass(frozen=True, slots=True)
class RankSpec:
    """The place of a rank among all trainer ranks; they meet at the store that rank 0 opened at `host` and `port`."""

    rank: int
    world: int
    host: str
    port: int

    def join(self, opened: TCPStore | None) -> Ranks:
        """Join the group of the ranks; `opened` is the store of rank 0."""
        if self.world == 1:
            return ALONE
        return Torchrun.join(self.rank, self.world, opened or TCPStore(self.host, self.port))


class RelayedObserver:
    """Run observer that keeps events until the driver takes them."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def begin(self, stage: str, total: int) -> None:
        self._events.append(("begin", (stage, total)))

    def advance(self, parts: int = 1) -> None:
        self._events.append(("advance", (parts,)))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._events.append(("step", (step, dict(metrics))))

    def log(self, line: str) -> None:
        self._events.append(("log", (line,)))

    def take(self) -> list[Event]:
        return [self._events.popleft() for _ in range(len(self._events))]


class TrainerRank:
    """One rank of the training; its methods are called through Ray, each in a thread."""

    def __init__(self, home: str) -> None:
        enter(home)
        self._observer = RelayedObserver()
        self._store: TCPStore | None = None

    def hello(self) -> Greeting:
        return greet()

    def open_store(self) -> tuple[str, int]:
        """Open the store where the ranks meet, on a free port; return its address."""
        self._store = TCPStore(ray_client.own_address(), 0, is_master=True, wait_for_workers=False)
        return self._store.host, self._store.port

    def reach(self, host: str, port: int) -> str | None:
        """Try to connect to trainer rank 0; return why that failed, or None."""
        return ray_client.reach(host, port)

    def train(
        self, spec: RankSpec, begun: Run | Config, folder: Path, changes: Sequence[str], backend: RolloutBackend
    ) -> Mapping[str, Any] | Failure | None:
        """Train to the end; return the summary on rank 0, or the error as a value."""
        os.environ["RANK"] = str(spec.rank)
        # Otherwise gloo announces what the host name resolves to, which is a loopback address on many machines.
        if interface := ray_client.own_interface():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        observer: RunObserver = self._observer if spec.rank == 0 else SilentObserver()
        try:
            _, summary = train_session(
                begun, folder, observer, changes, time.monotonic(), spec.join(self._store), backend
            )
        except (Exception, SystemExit) as error:
            return _failure(error)
        return summary

    def events(self) -> list[Event]:
        """Return what the run has reported since the last call."""
        return self._observer.take()

    def interrupt(self, number: int) -> None:
        """Stop at the next point that can be resumed, as after a signal."""
        INTERRUPTION.interrupt(number)


def _failure(error: BaseException) -> Failure:
    if reason := describe_out_of_memory(error):
        return Failure.of(UserError(reason))
    if isinstance(error, RuntimeError) and (reason := describe_disconnect(error)):
        return Failure.of(TrainingStopped(reason))
    return Failure.of(error)
