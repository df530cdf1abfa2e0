"""The client: a Retriever over HTTP, for every server that speaks the shapes of Search-R1 and its descendants."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NoReturn

from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.service.connections import Connections, Lane
from sleuth.retrieval.service.exchange import Failure, exchange
from sleuth.retrieval.service.retries import Retries
from sleuth.retrieval.service.road import check_above_zero, endpoint, proxy_at, transport
from sleuth.retrieval.service.secrets import Secrets
from sleuth.retrieval.service.throttle import Throttle
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


class Client:
    """Searches through a server: hits, or within `deadline` seconds a SearchUnavailable that says why.

    At most `concurrency` requests are in flight, `rate` a second are sent, `batch` queries go into one. A request
    without an answer after `timeout` seconds, half the deadline by default, is tried again until the deadline.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 64,
        rate: float | None = None,
        deadline: float = 60.0,
        timeout: float | None = None,
        token: str | None = None,
        proxy: str | None = None,
        batch: int = 512,
    ) -> None:
        self._timeout = deadline / 2 if timeout is None else timeout
        check_above_zero(concurrency=concurrency, rate=1 if rate is None else rate, batch=batch)
        check_above_zero(deadline=deadline, timeout=self._timeout)
        if self._timeout > deadline:
            raise ConfigError(f"timeout is {timeout}, longer than the deadline of {deadline} it lies in; give less")
        self.url = str(endpoint(url, "/retrieve"))
        self._deadline, self._batch = deadline, batch
        self._retries = Retries(deadline)
        self._throttle = Throttle(rate)
        self._secrets = Secrets({} if token is None else {"token": token})
        headers = {"content-type": "application/json"} | authorization(token)
        self._connections = Connections(concurrency, partial(transport, proxy_at(proxy)), headers)
        self._requests, self._answered, self._seconds = 0, 0, 0.0
        self._failures, self._retried, self._unavailable = Counter[str](), Counter[str](), Counter[str]()

    @property
    def counts(self) -> Counts:
        """The counters as they stand."""
        return Counts(
            self._requests,
            dict(self._failures),
            dict(self._retried),
            self._answered,
            dict(self._unavailable),
            self._seconds,
        )

    async def search(self, queries: Sequence[str], k: int) -> Outcomes:
        """See Retriever; a blank query is answered here, since servers differ in what they make of one."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        ends = started + self._deadline
        lane = await self._connections.lane()
        asked = [query for query in queries if query.strip()]
        self._answered += len(queries) - len(asked)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(lane, part, k, ends)) for part in self._parts(asked)]
        finally:
            self._seconds += loop.time() - started
        answers = chain.from_iterable(task.result() for task in tasks)
        return [next(answers) if query.strip() else [] for query in queries]

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; without it they end with the loop."""
        await self._connections.aclose()

    def _parts(self, queries: list[str]) -> list[list[str]]:
        return [queries[start : start + self._batch] for start in range(0, len(queries), self._batch)]

    async def _answer(self, lane: Lane, queries: list[str], k: int, ends: float) -> Outcomes:
        """The outcomes of queries that go into one request."""
        body = json.dumps({"queries": queries, "topk": k, "return_scores": True}).encode()
        found = await self._retries.first_answer(partial(self._attempt, lane, body, len(queries)), ends)
        if isinstance(found, Failure):
            self._unavailable[found.kind] += len(queries)
            return [SearchUnavailable(query, self._secrets.hidden(found.cause)) for query in queries]
        self._answered += len(queries)
        return [hits[:k] for hits in found]

    async def _attempt(self, lane: Lane, body: bytes, count: int, before: Failure | None) -> list[list[Hit]] | Failure:
        """One request, sent when there is a slot for it and the rate allows it."""
        async with lane.slot() as http:
            await self._throttle.take()
            self._requests += 1
            if before is not None:
                self._retried[before.kind] += 1
            try:
                sending = http.post(self.url, content=body)
                found = await exchange(sending, self._timeout, partial(_read, count), self._secrets)
            except asyncio.CancelledError:
                self._failures["cut off"] += 1
                raise
        if isinstance(found, Failure):
            self._failures[found.kind] += 1
        return found


def authorization(token: str | None) -> dict[str, str]:
    """The header that carries a token."""
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ConfigError("the token is blank or holds characters a header cannot carry; give it without line ends")
    return {"authorization": f"Bearer {token}"}


def _read(count: int, body: bytes) -> list[list[Hit]]:
    """The hits of each of `count` queries; anything that is not a whole answer to them is a ValueError."""
    answer = json.loads(body, parse_constant=_no_number)
    if not isinstance(answer, dict) or not isinstance(answer.get("result"), list):
        raise ValueError('it has no list "result"')
    if len(answer["result"]) != count:
        raise ValueError(f"it answers {len(answer['result'])} queries of {count}")
    return [hits_of(items) for items in answer["result"]]


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")
