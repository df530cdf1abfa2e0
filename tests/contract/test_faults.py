"""A server of which 30% of the answers are faults: what the client makes of it, counted on both sides."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle

from sleuth.errors import SearchUnavailable
from sleuth.http.client import RequestCounts
from sleuth.records import Hit, Passage
from sleuth.retrieval.service.client import SearchClient

FAULTS = ("500", "429", "garbage", "half", "none", "late")
SHARE = 0.3
TIMEOUT = 1.0
SLACK = 0.4  # seconds by which a busy machine may be late in telling that time is up

# What the client calls each fault; to it, a connection closed in the middle and one closed before are the same.
NAMES = {
    "500": "status 500",
    "429": "status 429",
    "garbage": "not an answer",
    "half": "broken connection",
    "none": "broken connection",
    "late": "time-out",
}

GARBAGE: tuple[Callable[[bytes], bytes], ...] = (
    lambda _: b"<html>busy</html>",
    lambda _: b"",
    lambda _: b'{"result": null}',
    lambda body: body[: len(body) // 2],
    lambda body: body.replace(b'"contents"', b'"context"'),
    lambda body: json.dumps({"result": [*json.loads(body)["result"], []]}).encode(),
    lambda body: json.dumps({"result": json.loads(body)["result"][1:]}).encode(),
)


def right(query: str, k: int) -> list[Hit]:
    """The hits of a query, which tell whose they are."""
    return [Hit(Passage(f"{query}/{place}", f'"{query}"\n{query} {place}'), 1.0 / place) for place in range(1, k + 1)]


def answer(body: bytes) -> bytes:
    asked = json.loads(body)
    hits = [right(query, asked["topk"]) for query in asked["queries"]]
    rows = [
        [{"document": {"id": h.passage.id, "contents": h.passage.contents}, "score": h.score} for h in each]
        for each in hits
    ]
    return json.dumps({"result": rows}).encode()


def message(status: str, body: bytes, *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Faulty:
    """Draws what to do with each request as it comes, and counts what it did."""

    dice: random.Random
    did: Counter[str] = field(default_factory=Counter)
    garbage: Iterator[Callable[[bytes], bytes]] = field(default_factory=lambda: cycle(GARBAGE))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.exchange(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.did["left"] += 1
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; tells whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = answer(await reader.readexactly(int(head.split("content-length:")[1].split()[0])))
        what = self.dice.choice(FAULTS) if self.dice.random() < SHARE else "right"
        self.did[what] += 1
        match what:
            case "right":
                writer.write(message("200 OK", body))
            case "500":
                writer.write(message("500 Internal Server Error", b"Internal Server Error"))
            case "429":
                writer.write(message("429 Too Many Requests", b'{"detail": "full"}', "Retry-After: 0"))
            case "garbage":
                writer.write(message("200 OK", next(self.garbage)(body)))
            case "half":
                whole = message("200 OK", body)
                writer.write(whole[: -len(body) // 2])
            case "late":
                await asyncio.sleep(2 * TIMEOUT)
                writer.write(message("200 OK", body))
        return what not in ("half", "none")


@asynccontextmanager
async def serving(faulty: Faulty) -> AsyncIterator[str]:
    connections = set[asyncio.Task[None]]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(faulty.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in connections:
            task.cancel()
        await asyncio.wait(connections)


def calls() -> list[list[str]]:
    """Many calls of one query, as an agent makes them, and a few of many, which go out in several requests."""
    alone = [[f"question {n}"] for n in range(250)]
    return alone + [[f"list {n} query {m}" for m in range(1 + 9 * n)] for n in range(6)]


async def timed(client: SearchClient, queries: list[str]) -> tuple[float, list[list[Hit] | SearchUnavailable]]:
    started = time.monotonic()
    outcomes = await client.search(queries, 3)
    return time.monotonic() - started, outcomes


async def run(seed: int, deadline: float) -> tuple[Counter[str], RequestCounts, Counter[str]]:
    """What the server did, what the client counted, and what its callers saw; each outcome is checked."""
    faulty, seen = Faulty(random.Random(seed)), Counter[str]()
    async with serving(faulty) as url:
        client = SearchClient(url, concurrency=32, deadline=deadline, timeout=TIMEOUT, batch=5)
        asked = calls()
        for queries, (seconds, outcomes) in zip(
            asked, await asyncio.gather(*(timed(client, queries) for queries in asked)), strict=True
        ):
            assert seconds <= deadline + SLACK
            for query, outcome in zip(queries, outcomes, strict=True):
                if isinstance(outcome, SearchUnavailable):
                    assert outcome.query == query
                    assert outcome.cause
                    seen["unavailable"] += 1
                else:
                    assert outcome == right(query, 3)
                    seen["answered"] += 1
        await client.aclose()
    return faulty.did, client.counts, seen


def named(did: Counter[str]) -> Counter[str]:
    """The faults of the server in the client's words."""
    total = Counter[str]()
    for fault, name in NAMES.items():
        total[name] += did[fault]
    return total


def test_a_patient_client_gets_every_answer_and_counts_every_fault() -> None:
    did, counts, seen = asyncio.run(run(seed=1, deadline=60.0))
    assert seen.total() == sum(len(queries) for queries in calls())
    assert seen["unavailable"] == 0
    assert all(did[fault] > 0 for fault in FAULTS), did
    assert counts.requests == did["right"] + sum(did[fault] for fault in FAULTS)
    assert counts.failures == counts.retries == named(did)


def test_a_hasty_client_says_what_it_could_not_get() -> None:
    did, counts, seen = asyncio.run(run(seed=2, deadline=1.3))
    assert seen.total() == sum(len(queries) for queries in calls())
    assert seen["answered"] > 0 < seen["unavailable"]
    assert sum(counts.retries.values()) <= sum(counts.failures.values()) > 0
    # A request cut off by the deadline was under way: what the server did with it, if it came to that, went unseen.
    cut_off = counts.failures.get("cut off", 0)
    here = Counter(counts.failures) - Counter({"cut off": cut_off})
    there = named(did)
    there["right"], here["right"] = did["right"], counts.requests - sum(counts.failures.values())
    assert here <= there
    assert counts.requests - cut_off == here.total() <= there.total() <= counts.requests
