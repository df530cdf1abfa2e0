"""Searches that come at the same time, made together: while one batch runs, the next one gathers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from sleuth.errors import SearchUnavailable, SleuthError
from sleuth.records import Hit
from sleuth.retrieval.retriever import Retriever

Found = list[Hit] | SearchUnavailable
Observer = Callable[[int, float], None]  # hears of each batch: how many queries it held, and how long it took

MEMORY = 0.8  # share of the past in the running mean of seconds a query


TURN = 0.05  # seconds of searching that one request takes up in a batch, while its next queries wait their turn
FEWEST = 8  # queries of a request in a batch, however long they take
FIRST_TURN = 32  # as long as it is not known how long a query takes


class Overloaded(SleuthError):
    """No room or no turn for a request; in about `seconds` there should be one."""

    def __init__(self, queued: int, seconds: float, waited: float = 0.0) -> None:
        waiting = f"{queued:,} queries are waiting" + (f", and this request did for {waited:g} s" if waited else "")
        super().__init__(f"{waiting}; try again in about {seconds:.1f} s, or send fewer")
        self.queued = queued
        self.seconds = seconds


class Gathered:
    """A retriever that asks another one for many requests at once, and never twice at the same time.

    A request goes at once when nothing runs. Those with the k of the oldest one join its batch, up to `batch` queries.
    They take turns: a request has as many queries in a batch as take 50 ms, and goes to the end of the line with the
    rest, so that a long one holds up the others by no more than that. A request waits `patience` seconds for its first
    turn, then it ends with Overloaded; so does one that finds more than `waiting` queries or `characters` in the line.
    One alone may be longer than that.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        batch: int = 512,
        waiting: int = 500_000,
        characters: int = 2**28,
        patience: float | None = None,
        linger: float = 0.0,
        observer: Observer | None = None,
    ) -> None:
        if batch < 1 or waiting < 1:
            raise ValueError(f"batch is {batch} and waiting {waiting}, expected at least 1")
        self._retriever = retriever
        self._batch = batch
        self._waiting, self._characters = waiting, characters
        self._patience = patience
        self._linger = linger
        self._observer = observer
        self._line = _Line()
        self._seconds_a_query = 0.0

    @property
    def queued(self) -> int:
        """Queries that no batch has taken yet."""
        return self._line.queries

    async def search(self, queries: Sequence[str], k: int) -> list[Found]:
        """The hits of the queries, searched with those of others; see Retriever."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        if not queries:
            return []
        line = self._line_here()
        request = _Request(tuple(queries), k)
        if line.queries:
            self._require_room(line, request)
        line.add(request)
        if line.worker is None:
            line.worker = asyncio.create_task(self._serve(line))
        timer = None
        if self._patience is not None:
            timer = asyncio.get_running_loop().call_later(self._patience, self._expire, line, request)
        try:
            return await request.answer
        finally:
            if timer is not None:
                timer.cancel()
            # Of a request given up by its caller, what has not begun is not searched.
            line.remove(request)

    def _require_room(self, line: "_Line", request: "_Request") -> None:
        queries = line.queries + len(request.queries) - self._waiting
        characters = line.characters + request.characters - self._characters
        if queries > 0 or characters > 0:
            # The line gets shorter by a query at a time, whosever it is.
            share = characters * line.queries / max(1, line.characters)
            raise Overloaded(line.queries, max(queries, share) * self._seconds_a_query)

    def _expire(self, line: "_Line", request: "_Request") -> None:
        """Ends a request that has had no turn until now."""
        if not request.taken and not request.answer.done():
            before = sum(min(self._turn, each.left) for each in line.requests)
            error = Overloaded(line.queries, before * self._seconds_a_query, self._patience or 0.0)
            request.answer.set_exception(error)

    @property
    def _turn(self) -> int:
        """The queries that a request may have in one batch."""
        if not self._seconds_a_query:
            return min(self._batch, FIRST_TURN)
        return min(self._batch, max(FEWEST, int(TURN / self._seconds_a_query)))

    def _line_here(self) -> "_Line":
        """The queue of the running loop; one left behind by a loop that has ended is forgotten."""
        worker = self._line.worker
        if worker is not None and worker.get_loop() is not asyncio.get_running_loop():
            if worker.get_loop().is_running():
                raise RuntimeError("a Gathered retriever was called from two event loops at once; make one for each")
            self._line = _Line()
        return self._line

    async def _serve(self, line: "_Line") -> None:
        """Searches batch after batch until nobody waits."""
        parts: list[_Part] = []
        try:
            while line.requests:
                if self._linger:
                    await asyncio.sleep(self._linger)
                parts = line.take(self._batch, self._turn)
                await self._search(parts)
        finally:
            line.worker = None
            # Nobody is left waiting where the loop itself is being taken down; else these are empty.
            line.abandon()
            for part in parts:
                part.request.answer.cancel()

    async def _search(self, parts: "list[_Part]") -> None:
        if not parts:
            return
        began = perf_counter()
        places = {query: None for part in parts for query in part.queries}
        answers = dict(zip(places, await self._answers(list(places), parts[0].request.k), strict=True))
        count, seconds = sum(len(part.queries) for part in parts), perf_counter() - began
        for part in parts:
            part.request.receive(part.start, [answers[query] for query in part.queries])
        recent = seconds / count
        self._seconds_a_query += (recent - self._seconds_a_query) * (1 - MEMORY if self._seconds_a_query else 1)
        if self._observer:
            self._observer(count, seconds)

    async def _answers(self, queries: list[str], k: int) -> list[Found]:
        """What the retriever answers; whatever it raises is why each of these queries has no answer."""
        try:
            answers = await self._retriever.search(queries, k)
        except Exception as error:
            return _unavailable(queries, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            if _being_cancelled():
                raise
            return _unavailable(queries, "the search was cancelled")
        if len(answers) != len(queries):
            return _unavailable(queries, f"the retriever gave {len(answers)} answers to {len(queries)} queries")
        return answers


@dataclass(slots=True, eq=False)
class _Request:
    """Queries of one caller, how many of them have been taken into batches, and the answers so far."""

    queries: tuple[str, ...]
    k: int
    answer: "asyncio.Future[list[Found]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: int = 0
    found: dict[int, list[Found]] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Queries that no batch has taken yet."""
        return len(self.queries) - self.taken

    @property
    def characters(self) -> int:
        return sum(map(len, self.queries))

    def take(self, room: int) -> "_Part":
        part = _Part(self, self.taken, self.queries[self.taken : self.taken + room])
        self.taken += len(part.queries)
        return part

    def receive(self, start: int, answers: list[Found]) -> None:
        self.found[start] = answers
        done = sum(map(len, self.found.values())) == len(self.queries)
        if done and not self.answer.done():
            self.answer.set_result([each for start in sorted(self.found) for each in self.found[start]])


@dataclass(frozen=True, slots=True)
class _Part:
    """Queries of a request, from `start` on, that are in one batch."""

    request: _Request
    start: int
    queries: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Line:
    """The requests of one event loop that are not wholly taken, in the order of their turns."""

    requests: OrderedDict[_Request, None] = field(default_factory=OrderedDict)
    queries: int = 0
    characters: int = 0  # of all queries of these requests, taken or not: they are held until the request is answered
    worker: asyncio.Task[None] | None = None

    def add(self, request: _Request) -> None:
        self.requests[request] = None
        self.queries += len(request.queries)
        self.characters += request.characters

    def remove(self, request: _Request) -> None:
        if request in self.requests:
            del self.requests[request]
            self.queries -= request.left
            self.characters -= request.characters

    def take(self, room: int, turn: int) -> list[_Part]:
        """The next batch: up to `turn` queries of each request that has the k of the first one."""
        parts: list[_Part] = []
        for request in list(self.requests):
            if parts and request.k != parts[0].request.k:
                continue
            parts.append(request.take(min(room, turn)))
            room -= len(parts[-1].queries)
            self.queries -= len(parts[-1].queries)
            if request.left:
                self.requests.move_to_end(request)
            else:
                del self.requests[request]
                self.characters -= request.characters
            if not room:
                break
        return parts

    def abandon(self) -> None:
        for request in self.requests:
            request.answer.cancel()
        self.requests.clear()
        self.queries = self.characters = 0


def _unavailable(queries: list[str], cause: str) -> list[Found]:
    return [SearchUnavailable(query, cause) for query in queries]


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
