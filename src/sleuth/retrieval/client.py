"""The client: a Retriever over HTTP, for every server that speaks the shapes of Search-R1 and its descendants."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NoReturn

import httpx

from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.connections import Connections, Lane, endpoint
from sleuth.retrieval.retries import Failure, broken, pause, refused
from sleuth.retrieval.throttle import Throttle
from sleuth.retrieval.wire import hits_of

Outcomes = list[list[Hit] | SearchUnavailable]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a client did: every request it sent was answered with hits or is among `failures`, by cause.

    `retries` are the requests sent again, by the cause of the failure before; `answered` and `unavailable` count
    queries; `seconds` is the time its calls took, added up. A request still under way, or given up because the
    deadline passed or the caller left ("cut off"), is counted as sent.
    """

    requests: int
    failures: Mapping[str, int]
    retries: Mapping[str, int]
    answered: int
    unavailable: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    """Queries that go into one request, when their time ends, and the failed attempts so far."""

    queries: list[str]
    body: bytes
    lane: Lane
    ends: float
    failures: list[Failure] = field(default_factory=list)


class Client:
    """Searches through a server: hits, or within `deadline` seconds a SearchUnavailable that says why.

    At most `concurrency` requests are in flight, `rate` a second are sent, `batch` queries go into one. A request
    without an answer after `timeout` seconds, half the deadline by default, is tried again, `attempts` times in all.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 64,
        rate: float | None = None,
        deadline: float = 60.0,
        timeout: float | None = None,
        attempts: int = 10,
        token: str | None = None,
        proxy: str | None = None,
        batch: int = 512,
    ) -> None:
        self._timeout = deadline / 2 if timeout is None else timeout
        for name, value in (
            ("concurrency", concurrency),
            ("rate", 1 if rate is None else rate),
            ("deadline", deadline),
            ("timeout", self._timeout),
            ("attempts", attempts),
            ("batch", batch),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value}; expected a number above 0")
        if self._timeout > deadline:
            raise ConfigError(f"timeout is {timeout}, longer than the deadline of {deadline} it lies in; give less")
        self.url = endpoint(url)
        self._deadline, self._attempts, self._batch = deadline, attempts, batch
        self._throttle = None if rate is None else Throttle(rate)
        self._connections = Connections(concurrency, token, proxy)
        self._token = token
        self._dice = random.Random()  # its own, so that seeded runs draw the same with and without retries
        self._requests, self._answered, self._seconds = 0, 0, 0.0
        self._failures, self._retries, self._unavailable = Counter[str](), Counter[str](), Counter[str]()

    @property
    def counts(self) -> Counts:
        """The counters as they stand."""
        return Counts(
            self._requests,
            dict(self._failures),
            dict(self._retries),
            self._answered,
            dict(self._unavailable),
            self._seconds,
        )

    async def search(self, queries: Sequence[str], k: int) -> Outcomes:
        """See Retriever; a blank query is answered here, since servers differ in what they make of one."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        lane = await self._connections.lane()
        asked = [query for query in queries if query.strip()]
        self._answered += len(queries) - len(asked)
        try:
            async with asyncio.TaskGroup() as group:
                parts = self._parts(asked, k, lane, started + self._deadline)
                tasks = [group.create_task(self._answer(part, k)) for part in parts]
        finally:
            self._seconds += loop.time() - started
        answers = chain.from_iterable(task.result() for task in tasks)
        return [next(answers) if query.strip() else [] for query in queries]

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; without it they end with the loop."""
        await self._connections.aclose()

    def _parts(self, queries: list[str], k: int, lane: Lane, ends: float) -> Iterator[Part]:
        for start in range(0, len(queries), self._batch):
            some = queries[start : start + self._batch]
            yield Part(some, json.dumps({"queries": some, "topk": k, "return_scores": True}).encode(), lane, ends)

    async def _answer(self, part: Part, k: int) -> Outcomes:
        try:
            async with asyncio.timeout_at(part.ends):
                found = await self._persist(part)
        except TimeoutError:
            found = self._overdue(part.failures)
        if isinstance(found, Failure):
            self._unavailable[found.kind] += len(part.queries)
            return [SearchUnavailable(query, self._discreet(found.cause)) for query in part.queries]
        self._answered += len(part.queries)
        return [hits[:k] for hits in found]

    async def _persist(self, part: Part) -> list[list[Hit]] | Failure:
        """Asks until there is an answer, or no point in asking."""
        while True:
            found = await self._attempt(part)
            if not isinstance(found, Failure):
                return found
            part.failures.append(found)
            tried, left = len(part.failures), part.ends - asyncio.get_running_loop().time()
            if not found.again:
                return found
            if tried >= self._attempts:
                return replace(found, cause=f"{found.cause} (attempt {tried} of {self._attempts})")
            wait = found.after + pause(tried, self._dice)
            if wait >= left:
                too_late = f"the next attempt, in {wait:.3g} s, would come after the deadline of {self._deadline:g} s"
                return replace(found, cause=f"{found.cause}; {too_late}")
            await asyncio.sleep(wait)

    async def _attempt(self, part: Part) -> list[list[Hit]] | Failure:
        """One request, sent when there is a slot for it and the rate allows it."""
        async with part.lane.slot() as http:
            if self._throttle is not None:
                await self._throttle.take()
            self._requests += 1
            self._retries.update(failure.kind for failure in part.failures[-1:])
            try:
                found = await self._send(http, part)
            except asyncio.CancelledError:
                self._failures["cut off"] += 1
                raise
        if isinstance(found, Failure):
            self._failures[found.kind] += 1
        return found

    async def _send(self, http: httpx.AsyncClient, part: Part) -> list[list[Hit]] | Failure:
        try:
            async with asyncio.timeout(self._timeout):
                response = await http.post(self.url, content=part.body)
        except TimeoutError:
            return Failure("time-out", f"no answer within {self._timeout:g} s")
        except httpx.RequestError as error:
            return broken(error)
        return _read(response.content, len(part.queries)) if response.is_success else refused(response)

    def _overdue(self, failures: list[Failure]) -> Failure:
        last = f"; the last of {len(failures)} failed attempts: {failures[-1].cause}" if failures else ""
        return Failure("deadline", f"no answer within the deadline of {self._deadline:g} s{last}")

    def _discreet(self, cause: str) -> str:
        """Servers may repeat what they were sent."""
        return cause if self._token is None else cause.replace(self._token, "[token]")


def _read(body: bytes, count: int) -> list[list[Hit]] | Failure:
    """The hits of each of `count` queries; anything that is not a whole answer to them is a failure."""
    try:
        answer = json.loads(body, parse_constant=_no_number)
        if not isinstance(answer, dict) or not isinstance(answer.get("result"), list):
            raise ValueError('it has no list "result"')
        if len(answer["result"]) != count:
            raise ValueError(f"it answers {len(answer['result'])} queries of {count}")
        return [hits_of(items) for items in answer["result"]]
    except (ValueError, OverflowError, RecursionError) as error:
        return Failure("not an answer", f"what the server sent is not an answer: {error}")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
