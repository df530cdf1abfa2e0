"""The client against loopback servers that answer as they are told."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from sleuth.credentials import Secrets
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.http.client import RetryPolicy, error_message, parse_retry_after
from sleuth.records import Hit, Passage
from sleuth.retrieval.service.client import SearchClient

SECRET = "s3cr3t-token"


@dataclass(frozen=True)
class Request:
    """What a server received."""

    target: str
    headers: dict[str, str]
    body: Any


Reply = Callable[[Request], Awaitable[bytes]]


def raw(status: str, body: bytes | str = b"", **headers: str) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    fields = {"content_length": str(len(content)), **headers}
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def saying(status: str, body: bytes | str = b"", **headers: str) -> Reply:
    async def reply(_: Request) -> bytes:
        return raw(status, body, **headers)

    return reply


def rows(request: Request) -> list[list[dict[str, Any]]]:
    """As many rows as were asked for, each of which tells its query."""
    queries, k = request.body["queries"], request.body["topk"]
    return [[{"id": f"{query}/{n}", "contents": f'"{query}"\n{n}'} for n in range(k)] for query in queries]


async def found(request: Request) -> bytes:
    scored = [[{"document": row, "score": -n} for n, row in enumerate(each)] for each in rows(request)]
    return raw("200 OK", json.dumps({"result": scored}))


def slowly(seconds: float) -> Reply:
    async def reply(request: Request) -> bytes:
        await asyncio.sleep(seconds)
        return await found(request)

    return reply


async def closing(_: Request) -> bytes:
    """An answer that breaks off in the middle, with its connection."""
    return raw("200 OK", b'{"result": [[]]}')[:-9]


@dataclass
class Loopback:
    """A server that gives each of its replies once, the last one for ever."""

    replies: list[Reply]
    requests: list[Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self.exchange(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            logging.getLogger(__name__).debug("the client left: %s", error)
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.times.append(time.monotonic())
        self.asked.set()
        self.requests.append(Request(head[0].split()[1], headers, json.loads(body)))
        reply = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = await reply(self.requests[-1])
        finally:
            self.in_flight -= 1
        writer.write(answer)
        await writer.drain()
        if reply is closing:
            raise ConnectionResetError("closed on purpose")


@asynccontextmanager
async def loopback(*replies: Reply) -> AsyncIterator[Loopback]:
    server, tasks = Loopback(list(replies)), set[asyncio.Task[None]]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(server.serve(reader, writer)))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Scene:
    """What came of one search."""

    outcomes: list[list[Hit] | SearchUnavailable]
    server: Loopback
    client: SearchClient
    seconds: float

    @property
    def cause(self) -> str:
        (outcome,) = self.outcomes
        assert isinstance(outcome, SearchUnavailable)
        return outcome.cause

    @property
    def hits(self) -> list[Hit]:
        (outcome,) = self.outcomes
        assert not isinstance(outcome, SearchUnavailable)
        return outcome


def scene(*replies: Reply, queries: tuple[str, ...] = ("q",), k: int = 2, path: str = "", **options: Any) -> Scene:
    async def play() -> Scene:
        async with loopback(*replies) as server:
            client = SearchClient(server.url + path, **{"deadline": 5.0, **options})
            started = time.monotonic()
            outcomes = await client.search(queries, k)
            return Scene(outcomes, server, client, time.monotonic() - started)

    return asyncio.run(play())


def expected(query: str, k: int) -> list[Hit]:
    return [Hit(Passage(f"{query}/{n}", f'"{query}"\n{n}'), -float(n)) for n in range(k)]


def test_queries_go_out_in_the_shape_of_search_r1() -> None:
    played = scene(found, queries=("Łódź 東京", "two\nlines", "\ud800"), k=3)
    (request,) = played.server.requests
    assert request.target == "/retrieve"
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers
    assert request.body == {"queries": ["Łódź 東京", "two\nlines", "\ud800"], "topk": 3, "return_scores": True}
    assert played.outcomes == [expected(query, 3) for query in ("Łódź 東京", "two\nlines", "\ud800")]


@pytest.mark.parametrize(
    ("path", "target"),
    [("", "/retrieve"), ("/", "/retrieve"), ("/retrieve", "/retrieve"), ("/v1/find?x=1", "/v1/find?x=1")],
)
def test_the_url_is_the_root_or_the_endpoint(path: str, target: str) -> None:
    assert scene(found, path=path).server.requests[0].target == target


ROW = {"id": "7", "contents": '"T"\ntext', "url": "https://example.org"}
PASSAGE = Passage("7", '"T"\ntext', {"url": "https://example.org"})


@pytest.mark.parametrize(
    ("items", "passage", "score"),
    [
        ([{"document": ROW, "score": 0.25}], PASSAGE, 0.25),
        ([ROW], PASSAGE, 1.0),
        ([{"document": ROW}], PASSAGE, 1.0),
        ([{"document": '"T"\ntext', "score": 3}], None, 3.0),
        ([{"document": {"contents": '"T"\ntext'}}], None, 1.0),
    ],
    ids=["scored", "bare", "wrapped", "rerank", "google"],
)
def test_every_known_shape_is_read(items: list[Any], passage: Passage | None, score: float) -> None:
    (hit,) = scene(saying("200 OK", json.dumps({"result": [items]}))).hits
    assert hit.score == score
    assert hit.passage.contents == '"T"\ntext'
    assert passage is None or hit.passage == passage


def test_hits_beyond_k_are_cut_and_the_order_is_the_servers() -> None:
    items = [{"document": {"id": str(n), "contents": "c"}, "score": score} for n, score in enumerate([0.1, 0.9, 0.5])]
    hits = scene(saying("200 OK", json.dumps({"result": [items]})), k=2).hits
    assert [(hit.passage.id, hit.score) for hit in hits] == [("0", 0.1), ("1", 0.9)]


def test_nothing_found_is_an_answer() -> None:
    assert scene(saying("200 OK", '{"result": [[]]}')).hits == []


def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(json.dumps({"result": [[ROW]]}).encode())
    assert scene(saying("200 OK", body, content_encoding="gzip")).hits == [Hit(PASSAGE, 1.0)]


def test_blank_queries_are_answered_without_the_server() -> None:
    played = scene(found, queries=("", "a", " \n"))
    assert played.outcomes == [[], expected("a", 2), []]
    assert played.server.requests[0].body["queries"] == ["a"]


def test_no_queries_no_request() -> None:
    played = scene(found, queries=())
    assert played.outcomes == []
    assert played.client.counts.requests == 0


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (saying("429 Too Many Requests"), "status 429"),
        (saying("500 Internal Server Error"), "status 500"),
        (saying("502 Bad Gateway", "<html>"), "status 502"),
        (saying("503 Service Unavailable"), "status 503"),
        (saying("504 Gateway Timeout"), "status 504"),
        (slowly(0.3), "time-out"),
        (closing, "broken connection"),
        (saying("200 OK", b"\x1f\x8bno", content_encoding="gzip"), "broken connection"),
        (saying("200 OK", "<html>hello</html>"), "not an answer"),
        (saying("200 OK", ""), "not an answer"),
        (saying("200 OK", b"\xff\xfe\xfd"), "not an answer"),
        (saying("200 OK", "[" * 100_000), "not an answer"),
        (saying("200 OK", '{"result": [[{"document": '), "not an answer"),
        (saying("200 OK", '{"result": {}}'), "not an answer"),
        (saying("200 OK", '{"result": []}'), "not an answer"),
        (saying("200 OK", '{"result": [[], []]}'), "not an answer"),
        (saying("200 OK", '{"result": [null]}'), "not an answer"),
        (saying("200 OK", '{"result": [[{"document": {"id": "1"}, "score": 1}]]}'), "not an answer"),
        (saying("200 OK", '{"result": [[{"document": "d", "score": NaN}]]}'), "not an answer"),
        (saying("200 OK", '{"result": [[{"document": "d", "score": 1%s}]]}' % ("0" * 400)), "not an answer"),
    ],
)
def test_passing_faults_are_tried_again(reply: Reply, kind: str) -> None:
    played = scene(reply, reply, found, timeout=0.15)
    assert played.hits == expected("q", 2)
    counts = played.client.counts
    assert counts.requests == 3
    assert counts.failures == counts.retries == {kind: 2}


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 413, 422, 501])
def test_a_refusal_is_final_and_says_what_the_server_says(status: int) -> None:
    played = scene(saying(f"{status} X", '{"detail": "only ten queries, please"}'), found)
    assert played.cause.startswith(f"status {status} ")
    assert played.cause.endswith(": only ten queries, please")
    assert played.client.counts.requests == 1
    assert played.client.counts.failures == {f"status {status}": 1}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no  such\\nindex"}}', "no such index"),
        (b'{"detail": [{"loc": ["body"], "msg": "Field required"}, {"msg": "Too long"}]}', "Field required; Too long"),
        (b'{"status": 3}', '{"status": 3}'),
        (b"plain words", "plain words"),
        (b"\xff" * 9, "\ufffd" * 9),
        (b"[" * 100_000, "[" * 300 + "…"),
        (b"x" * 400, "x" * 300 + "…"),
        (b"", ""),
    ],
)
def test_what_a_server_says_is_put_on_one_line(body: bytes, said: str) -> None:
    assert error_message(body, Secrets({})) == said


def test_nobody_at_the_address() -> None:
    async def play() -> tuple[SearchClient, list[list[Hit] | SearchUnavailable]]:
        async with loopback(found) as server:
            url = server.url
        client = SearchClient(url, deadline=0.5)
        return client, await client.search(["a", "b"], 1)

    client, outcomes = asyncio.run(play())
    assert [isinstance(outcome, SearchUnavailable) and outcome.query for outcome in outcomes] == ["a", "b"]
    assert set(client.counts.failures) == {"no connection"}


def in_two_seconds() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)


@pytest.mark.parametrize("value", [lambda: "1", in_two_seconds], ids=["seconds", "date"])
def test_retry_after_is_honoured(value: Callable[[], str]) -> None:
    played = scene(saying("429 Too Many Requests", retry_after=value()), found)
    assert played.hits == expected("q", 2)
    first, second = played.server.times
    assert 0.95 <= second - first <= 2.5


def test_a_wait_past_the_deadline_is_not_waited_for() -> None:
    played = scene(saying("503 Service Unavailable", "closed", retry_after="120"), found)
    assert played.cause.startswith("status 503 Service Unavailable: closed; the next retry, in 120 s")
    assert played.seconds < 1.0
    assert played.client.counts.requests == 1
    assert played.client.counts.failures == {"status 503": 1}


NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        (" 0.5 ", 0.5),
        ("-3", 0.0),
        ("soon", 0.0),
        ("٣", 0.0),
        ("9" * 400, float("inf")),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 99 Mar 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_pauses_double_up_to_a_ceiling_and_are_spread_over_all_of_it() -> None:
    for failures, ceiling in [(1, 0.1), (2, 0.2), (5, 1.6), (7, 6.4), (8, 8.0), (5000, 8.0)]:
        drawn = [RetryPolicy(60.0).pause(failures) for _ in range(500)]
        assert 0 <= min(drawn) < 0.05 * ceiling < 0.95 * ceiling < max(drawn) <= ceiling


def test_no_call_outlives_its_deadline() -> None:
    played = scene(slowly(3.0), deadline=0.5, timeout=0.3)
    assert 0.45 <= played.seconds <= 0.9
    assert "0.5 s; last of 1 failed attempts: no response within 0.3 s" in played.cause
    assert played.client.counts.failures == {"time-out": 1, "cut off": 1}


def test_no_call_waits_for_an_attempt_it_has_no_time_for() -> None:
    played = scene(saying("503 Service Unavailable", "busy"), deadline=1.5)
    assert played.seconds <= 2.5
    assert played.cause.endswith("deadline of 1.5 s")
    assert played.client.counts.requests == sum(played.client.counts.failures.values()) > 1


def test_the_deadline_holds_while_waiting_for_a_slot_and_for_the_rate() -> None:
    async def play(**options: Any) -> tuple[int, float, list[list[Hit] | SearchUnavailable]]:
        async with loopback(slowly(0.05)) as server:
            client = SearchClient(server.url, deadline=0.3, **options)
            started = time.monotonic()
            outcomes = await asyncio.gather(*(client.search([f"q{n}"], 1) for n in range(20)))
            return len(server.requests), time.monotonic() - started, [outcome for (outcome,) in outcomes]

    for options in ({"concurrency": 1}, {"rate": 20.0}):
        sent, seconds, outcomes = asyncio.run(play(**options))
        answered = [outcome for outcome in outcomes if not isinstance(outcome, SearchUnavailable)]
        assert 0.25 <= seconds <= 0.7
        assert 1 <= len(answered) <= sent <= 8
        assert all("deadline" in outcome.cause for outcome in outcomes if isinstance(outcome, SearchUnavailable))


def test_requests_in_flight_are_capped() -> None:
    async def play() -> tuple[Loopback, list[list[list[Hit] | SearchUnavailable]]]:
        async with loopback(slowly(0.02)) as server:
            client = SearchClient(server.url, concurrency=3)
            return server, await asyncio.gather(*(client.search([f"q{n}"], 1) for n in range(15)))

    server, outcomes = asyncio.run(play())
    assert server.most_in_flight == 3
    assert outcomes == [[expected(f"q{n}", 1)] for n in range(15)]


def test_requests_are_sent_at_the_rate() -> None:
    played = scene(found, queries=tuple(f"q{n}" for n in range(11)), batch=1, rate=50.0)
    assert all(not isinstance(outcome, SearchUnavailable) for outcome in played.outcomes)
    # The first goes at once, the others 20 ms apart, less the 30 ms that a full bucket is ahead.
    assert 0.169 <= played.seconds <= 1.0


def test_a_long_list_goes_out_in_parts_that_fail_alone() -> None:
    async def reply(request: Request) -> bytes:
        return raw("422 X", "bad") if "q3" in request.body["queries"] else await found(request)

    queries = tuple(f"q{n}" for n in range(7))
    played = scene(reply, queries=queries, batch=2)
    assert sorted(request.body["queries"] for request in played.server.requests) == [
        ["q0", "q1"],
        ["q2", "q3"],
        ["q4", "q5"],
        ["q6"],
    ]
    for query, outcome in zip(queries, played.outcomes, strict=True):
        if query in ("q2", "q3"):
            assert isinstance(outcome, SearchUnavailable)
            assert (outcome.query, outcome.cause) == (query, "status 422 Unprocessable Entity: bad")
        else:
            assert outcome == expected(query, 2)


def test_a_caller_who_leaves_frees_its_slot() -> None:
    async def play() -> tuple[list[list[Hit] | SearchUnavailable], SearchClient]:
        async with loopback(slowly(30.0), found) as server:
            client = SearchClient(server.url, concurrency=1)
            call = asyncio.create_task(client.search(["left"], 1))
            await server.asked.wait()
            call.cancel()
            outcomes = await client.search(["stayed"], 1)
            assert call.cancelled()
            return outcomes, client

    outcomes, client = asyncio.run(play())
    assert outcomes == [expected("stayed", 1)]
    assert (client.counts.requests, client.counts.failures) == (2, {"cut off": 1})


def test_connections_are_kept_and_event_loops_may_follow_each_other() -> None:
    connections: list[int] = []

    async def play(client: SearchClient | None) -> SearchClient:
        """The port stays the same, the server and the loop are new."""
        port = 0 if client is None else int(client.url.split(":")[2].split("/")[0])
        server, tasks = Loopback([found]), set[asyncio.Task[None]]()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(server.serve(reader, writer)))

        async with await asyncio.start_server(accept, "127.0.0.1", port, reuse_address=True) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            client = client or SearchClient(url, concurrency=2)
            for turn in range(3):
                outcomes = await asyncio.gather(*(client.search([f"q{turn}{n}"], 1) for n in range(6)))
                assert outcomes == [[expected(f"q{turn}{n}", 1)] for n in range(6)]
            connections.append(len(tasks))
            return client

    client = asyncio.run(play(None))
    asyncio.run(play(client))
    assert connections == [2, 2]
    assert client.counts.requests == 36


def test_closed_it_opens_again() -> None:
    async def play() -> list[list[list[Hit] | SearchUnavailable]]:
        async with loopback(found) as server:
            client = SearchClient(server.url)
            await client.aclose()
            outcomes = [await client.search(["a"], 1)]
            await client.aclose()
            await client.aclose()
            return [*outcomes, await client.search(["b"], 1)]

    assert asyncio.run(play()) == [[expected("a", 1)], [expected("b", 1)]]


def test_requests_go_through_the_proxy_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def play() -> tuple[Loopback, list[list[Hit] | SearchUnavailable]]:
        async with loopback(found) as proxy:
            client = SearchClient("http://search.invalid:8000", proxy=proxy.url.replace("//", "//ada:pw@"))
            return proxy, await client.search(["a"], 1)

    proxy, outcomes = asyncio.run(play())
    assert outcomes == [expected("a", 1)]
    assert proxy.requests[0].target == "http://search.invalid:8000/retrieve"
    assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")
    assert scene(found).hits == expected("q", 2)


def test_the_token_is_sent_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    async def echo(request: Request) -> bytes:
        return raw("401 Unauthorized", f"who is {request.headers['authorization']}?")

    with caplog.at_level(logging.DEBUG):
        played = scene(echo, token=SECRET)
    assert played.server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert played.cause == "status 401 Unauthorized: who is Bearer [token]?"
    assert SECRET not in caplog.text + repr(played.client) + repr(played.outcomes) + repr(played.client.counts)


def quoted(message: str) -> str:
    return json.dumps({"detail": message})


def nested(message: str) -> str:
    return json.dumps({"code": 7, "seen": [message]})


@pytest.mark.parametrize("token", [SECRET, 's3cr3t"to/ken\\', "s3cr3t  token+"])
@pytest.mark.parametrize("before", ["", "x" * 250, "x" * 280, "x" * 290, "x" * 298, " " * 795])
@pytest.mark.parametrize("form", [str, quoted, nested])
def test_no_part_of_the_token_is_left_where_a_long_message_is_cut(
    token: str, before: str, form: Callable[[str], str]
) -> None:
    body = form(f"{before}{token}{' and more' * 100}").encode()
    said = error_message(body, Secrets({"token": token}))
    assert len(said) == 301
    assert "s3c" not in said


def test_a_refusal_that_repeats_the_token_far_down_is_cut_without_it() -> None:
    played = scene(saying("400 Bad Request", "x" * 295 + SECRET), token=SECRET)
    assert played.cause == f"status 400 Bad Request: {'x' * 295}[toke…"


def test_what_an_answer_shows_of_the_token_is_hidden_before_it_is_cut() -> None:
    score = "x" * 260 + SECRET + "y" * 100_000
    body = json.dumps({"result": [[{"document": "d", "score": score}]]})
    said = scene(saying("200 OK", body), token=SECRET, deadline=0.05).cause
    assert "a score is 'xxx" in said
    assert "s3c" not in said
    assert len(said) < 400


def test_no_cookie_is_sent_back() -> None:
    async def play() -> Loopback:
        async with loopback(saying("200 OK", '{"result": [[]]}', set_cookie="seen=a")) as server:
            client = SearchClient(server.url, concurrency=1)
            await client.search(["a"], 1)
            await client.search(["b"], 1)
            return server

    assert ["cookie" in request.headers for request in asyncio.run(play()).requests] == [False, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "localhost:8000"}, "'localhost:8000'"),
        ({"url": "ftp://localhost/x"}, "expected one like http"),
        ({"url": "http://"}, "the server URL"),
        ({"url": ""}, "the server URL"),
        ({"url": "http://localhost:port"}, "the server URL"),
        ({"url": "http://ada:hidden@localhost"}, "password"),
        ({"url": "http://ada:hidden/x@localhost"}, "the server URL"),
        ({"url": "ada:hidden@localhost"}, "the server URL"),
        ({"proxy": "socks5://ada:hidden@localhost:1"}, "'socks5'"),
        ({"proxy": "ada:hidden@localhost:port"}, "the proxy"),
        ({"token": "hidden\n"}, "the token"),
        ({"token": ""}, "the token"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"rate": 0.0}, "rate is 0"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"batch": -1}, "batch is -1"),
        ({"deadline": 5.0, "timeout": 6.0}, "longer than the deadline"),
        ({"url": "http://127.0.0.1:80000"}, "port 80000"),
        ({"url": "http://xn--a"}, "the server URL"),
        ({"proxy": "http://127.0.0.1:80000"}, "port 80000"),
        ({"proxy": "http://xn--a"}, "the proxy"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SearchClient(**{"url": "http://localhost:8000", **options})
    assert words in str(refused.value)
    assert "hidden" not in str(refused.value)
