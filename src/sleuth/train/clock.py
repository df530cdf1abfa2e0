"""How long the parts of a step take."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Sums the seconds of parts by name, until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: dict[str, float] = defaultdict(float)

    def count(self, name: str, amount: int) -> None:
        """Adds to a number that is taken with the seconds."""
        self._counts[name] += amount

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def taken(self) -> dict[str, float]:
        """The seconds of each part, and what was counted, since this was last called."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        counts, self._counts = self._counts, defaultdict(float)
        return {**{f"time/{name}": value for name, value in seconds.items()}, **counts}
