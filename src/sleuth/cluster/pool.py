"""The pool of rollout workers: which are up, how much each of them runs, and which is asked next."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sleuth.cluster.actor import Greeting


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A rollout worker: its Ray handle, what it reported when it started, and the retriever replicas that it asks."""

    number: int
    handle: Any
    greeting: Greeting
    replicas: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return f"rollout worker {self.number}"


@dataclass(slots=True)
class _State:
    up: bool = False
    running: int = 0


@dataclass(slots=True)
class WorkerPool:
    """Workers with their load; `limit` bounds the episodes of this process on each. Safe for several threads.

    `first` rotates the order in which equally loaded workers are asked, so that trainer ranks do not all ask the same.
    """

    members: Sequence[Member]
    limit: int
    first: int = 0
    _states: dict[int, _State] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _down_since: float | None = None

    def __post_init__(self) -> None:
        self._states = {member.number: _State() for member in self.members}
        self._down_since = time.monotonic()

    def claim(self, preferred: Member | None = None) -> Member | None:
        """Take the preferred worker, or the least loaded one; None if all are down or full. Release it afterwards."""
        with self._lock:
            free = [each for each in self.members if self._is_free(each)]
            if not free:
                return None
            count = len(self.members)
            chosen = (
                preferred
                if preferred in free
                else min(free, key=lambda each: (self._state(each).running, (each.number - self.first) % count))
            )
            assert chosen is not None  # noqa: S101  None is not in the list
            self._state(chosen).running += 1
            return chosen

    def release(self, member: Member) -> None:
        with self._lock:
            self._state(member).running -= 1

    def mark_up(self, member: Member) -> None:
        with self._lock:
            self._state(member).up = True
            self._down_since = None

    def mark_down(self, member: Member) -> None:
        with self._lock:
            self._state(member).up = False
            if self._down_since is None and not any(state.up for state in self._states.values()):
                self._down_since = time.monotonic()

    def is_up(self, member: Member) -> bool:
        with self._lock:
            return self._state(member).up

    def current_members(self) -> tuple[Member, ...]:
        """The workers that are up."""
        with self._lock:
            return tuple(member for member in self.members if self._state(member).up)

    @property
    def seconds_down(self) -> float:
        """How long no worker has been up; 0 if one is."""
        with self._lock:
            return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def _is_free(self, member: Member) -> bool:
        state = self._state(member)
        return state.up and state.running < self.limit

    def _state(self, member: Member) -> _State:
        return self._states[member.number]
