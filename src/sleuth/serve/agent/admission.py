"""How many questions are answered at once; those that come on top are told when to come again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from sleuth.serve.agent.problems import Denied

WEIGHT = 0.2  # of the last episode in the mean that guesses when the next one ends


class Admission:
    """Places for `places` episodes; a full house is a refusal, so that nobody waits without knowing."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._mean = 0.0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place, given back however the episode ends; 429 where none is free."""
        if self.taken >= self.places:
            raise Denied(
                429,
                f"{self.taken} questions are being answered, which is all this server takes at once; ask again soon",
                headers={"Retry-After": str(self.seconds)},
            )
        self.taken += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self.taken -= 1
            self._mean += WEIGHT * (time.monotonic() - began - self._mean)

    @property
    def seconds(self) -> int:
        """After how many seconds a place should be free."""
        return max(1, ceil(self._mean / self.places))
