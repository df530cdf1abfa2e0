"""What the host knows of every slot, as arrays.

A step touches every slot. Python objects touched one by one would take longer than a GPU's step, so a row is looked at
only when something happens to it: its tokens since then wait in a ring of the last steps.

Suffixes: S slots, M sampled rows of a step, R steps of the ring.
"""

import numpy as np

from sleuth.engines.paged.pages import PAGE
from sleuth.engines.paged.row import Row

# Rows are looked at once a page at least.
RING = 4 * PAGE


class Board:
    """One entry a slot: the device has computed and drawn so much for it, and this much of that has been seen."""

    def __init__(self, slots: int) -> None:
        self.rows: list[Row | None] = [None] * slots
        self.computed_S = np.zeros(slots, dtype=np.int64)
        self.room_S = np.zeros(slots, dtype=np.int64)
        self.drawn_S = np.zeros(slots, dtype=np.int64)
        self.seen_S = np.zeros(slots, dtype=np.int64)
        self.given_S = np.zeros(slots, dtype=np.int64)
        self.limit_S = np.zeros(slots, dtype=np.int64)
        self.seed_S = np.zeros(slots, dtype=np.uint64)
        self.watch_S = np.zeros(slots, dtype=np.int64)
        self.heard_S = np.zeros(slots, dtype=bool)
        # Grows with every change of owner, so that what was sampled for the one before is known as such.
        self.tenant_S = np.zeros(slots, dtype=np.int64)
        self._token_RS = np.zeros((RING, slots), dtype=np.int64)
        self._logprob_RS = np.zeros((RING, slots), dtype=np.float64)
        self._version_R = np.zeros(RING, dtype=np.int64)
        self._landed = 0

    def move_in(self, row: Row) -> None:
        """The row has its slot and pages; `row.cached` tokens of it are there already."""
        slot = row.slot
        self.rows[slot] = row
        self.computed_S[slot] = row.cached
        self.room_S[slot] = len(row.pages) * PAGE
        self.drawn_S[slot] = self.seen_S[slot] = len(row.logprobs)
        self.given_S[slot], self.limit_S[slot] = row.given, row.limit
        self.seed_S[slot] = int(row.sampling.seed)
        self.watch_S[slot], self.heard_S[slot] = row.watch, row.on_tokens is not None

    def move_out(self, row: Row) -> None:
        self.rows[row.slot] = None
        self.tenant_S[row.slot] += 1

    def known(self, row: Row) -> int:
        """How many tokens, of those that have been looked at, have keys and values."""
        return min(int(self.computed_S[row.slot]), len(row.ids))

    def land(self, slots_M: np.ndarray, tokens_M: np.ndarray, logprobs_M: np.ndarray, version: int) -> None:
        """Keeps what a step sampled; every row that is decoding is in every step."""
        self._landed += 1
        place = self._landed % RING
        self._token_RS[place, slots_M] = tokens_M
        self._logprob_RS[place, slots_M] = logprobs_M
        self._version_R[place] = version
        self.seen_S[slots_M] += 1

    def catch_up(self, row: Row) -> None:
        """Lets the row have the tokens that were seen since it was last looked at."""
        new = int(self.seen_S[row.slot]) - len(row.logprobs)
        places = np.arange(self._landed - new + 1, self._landed + 1) % RING
        row.ids += self._token_RS[places, row.slot].tolist()
        row.logprobs += self._logprob_RS[places, row.slot].tolist()
        row.versions += self._version_R[places].tolist()
