"""A request on its way through the engine."""

import asyncio
from dataclasses import dataclass, field

from sleuth.engines.base import Completion, Finish, OnTokens, Sampling, Session


@dataclass(slots=True, eq=False)
class Row:
    """A request: its tokens as far as they have been looked at, and where their keys and values are."""

    ids: list[int]
    given: int
    sampling: Sampling
    limit: int
    watch: int
    order: tuple[int, int]
    session: Session | None
    on_tokens: OnTokens | None
    future: "asyncio.Future[Completion]"
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    heard: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.given :]

    @property
    def over(self) -> bool:
        """Nothing more is to be computed for it: it is finished, or nobody waits for it."""
        return self.finish is not None or self.future.done()

    def tell(self) -> None:
        """Lets the listener hear what is new; its error is the caller's own and ends only this request."""
        new = self.sampled[self.heard :]
        if self.on_tokens is None or not new or self.future.done():
            return
        self.heard += len(new)
        try:
            self.on_tokens(new)
        except asyncio.CancelledError:
            self.future.cancel()
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
        if isinstance(error, StopIteration):
            # No future can carry it.
            error = RuntimeError(f"{error!r} was raised")
        if not self.future.done():
            self.future.set_exception(error)
