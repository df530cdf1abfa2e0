"""The accounts of episodes: every task is asked, asked again if its worker is lost, and finished exactly once."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

Key = TypeVar("Key")

ASKED, FINISHED, RETRIED, LOST, CANCELLED = "asked", "finished", "retried", "lost", "cancelled"


@dataclass(slots=True)
class Accounts:
    """Attempts at tasks, by number. Safe for several threads.

    asked = finished + cancelled + open, and every attempt that was lost is retried, cancelled or open.
    """

    _open: dict[int, int] = field(default_factory=dict)  # attempt of a task -> how many attempts the task has had
    _numbers: "count[int]" = field(default_factory=count)
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self) -> int:
        """Open the first attempt at a task and return its number."""
        with self._lock:
            self._counts[ASKED] += 1
            return self._new_attempt(1)

    def ask_again(self, attempt: int) -> int:
        """Replace an attempt whose worker was lost; a late result of the old one is not counted."""
        with self._lock:
            tries = self._open.pop(attempt)
            self._counts[LOST] += 1
            self._counts[RETRIED] += 1
            return self._new_attempt(tries + 1)

    def finish(self, attempt: int) -> bool:
        """Count a result; False if the attempt was replaced or is already finished."""
        with self._lock:
            if self._open.pop(attempt, None) is None:
                return False
            self._counts[FINISHED] += 1
            return True

    def cancel(self, attempt: int) -> None:
        """Give up an open attempt, because its caller was cancelled."""
        with self._lock:
            if self._open.pop(attempt, None) is not None:
                self._counts[CANCELLED] += 1

    @property
    def open(self) -> int:
        with self._lock:
            return len(self._open)

    def collect(self) -> dict[str, float]:
        """Return the counts since the last call."""
        with self._lock:
            found = {name: float(self._counts[name]) for name in (ASKED, FINISHED, RETRIED, LOST, CANCELLED)}
            self._counts.clear()
        return found

    def _new_attempt(self, tries: int) -> int:
        attempt = next(self._numbers)
        self._open[attempt] = tries
        return attempt
