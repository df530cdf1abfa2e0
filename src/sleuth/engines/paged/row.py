"""A request on its way through the engine, and which requests are computed together."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sleuth.engines.base import Completion, Finish, Listener, Sampling, Seat

PREFILL_TOKENS = 8192


@dataclass(slots=True, eq=False)
class Row:
    """A request: its tokens so far, and where its keys and values are."""

    ids: list[int]
    given: int
    sampling: Sampling
    order: tuple[int, int]
    seat: Seat | None
    listen: Listener | None
    future: "asyncio.Future[Completion]"
    random: np.ndarray
    slot: int = -1
    computed: int = 0
    heard: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.given :]

    @property
    def behind(self) -> int:
        """How many of its tokens are still to be computed."""
        return len(self.ids) - self.computed

    def tell(self) -> None:
        """Lets the listener hear what is new; its error is the caller's own and ends only this request."""
        new = self.sampled[self.heard :]
        if self.listen is None or not new or self.future.done():
            return
        self.heard += len(new)
        try:
            self.listen(new)
        except Exception as error:
            self.fail(error)

    def deliver(self) -> None:
        """Hands a finished request to whoever waits for it."""
        if self.finish is not None and not self.future.done():
            self.future.set_result(
                Completion(tuple(self.sampled), tuple(self.logprobs), tuple(self.versions), self.finish, self.stop)
            )

    def fail(self, error: Exception) -> None:
        """Ends the request with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


def batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that decode together, after the rows that catch up, in batches of like length and bounded size."""
    decoding = [row for row in rows if row.behind == 1]
    batch: list[Row] = []
    for row in sorted((row for row in rows if row.behind > 1), key=lambda row: row.behind):
        if batch and (len(batch) + 1) * row.behind > PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
    if decoding:
        yield sorted(decoding, key=lambda row: row.slot)
