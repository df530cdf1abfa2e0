"""Retrieval clients against scripted loopback servers."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server
from threading import Thread
from time import sleep
from typing import Any

import pytest

from sleuth.config.retrieval import ServiceConfig
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.backends import require_ready
from sleuth.retrieval.service.client import SearchClient, served_index

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


def test_request_has_the_search_r1_format() -> None:
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
def test_url_is_the_root_or_the_endpoint(path: str, target: str) -> None:
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
def test_every_known_format_is_parsed(items: list[Any], passage: Passage | None, score: float) -> None:
    (hit,) = scene(saying("200 OK", json.dumps({"result": [items]}))).hits
    assert hit.score == score
    assert hit.passage.contents == '"T"\ntext'
    assert passage is None or hit.passage == passage


def test_hits_are_truncated_to_k_in_server_order() -> None:
    items = [{"document": {"id": str(n), "contents": "c"}, "score": score} for n, score in enumerate([0.1, 0.9, 0.5])]
    hits = scene(saying("200 OK", json.dumps({"result": [items]})), k=2).hits
    assert [(hit.passage.id, hit.score) for hit in hits] == [("0", 0.1), ("1", 0.9)]


def test_empty_result_is_valid() -> None:
    assert scene(saying("200 OK", '{"result": [[]]}')).hits == []


def test_compressed_response_is_read() -> None:
    body = gzip.compress(json.dumps({"result": [[ROW]]}).encode())
    assert scene(saying("200 OK", body, content_encoding="gzip")).hits == [Hit(PASSAGE, 1.0)]


def test_blank_queries_are_not_sent() -> None:
    played = scene(found, queries=("", "a", " \n"))
    assert played.outcomes == [[], expected("a", 2), []]
    assert played.server.requests[0].body["queries"] == ["a"]


def test_no_queries_send_no_request() -> None:
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
def test_transient_failures_are_retried(reply: Reply, kind: str) -> None:
    played = scene(reply, reply, found, timeout=0.15)
    assert played.hits == expected("q", 2)
    counts = played.client.counts
    assert counts.requests == 3
    assert counts.failures == counts.retries == {kind: 2}


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 413, 422, 501])
def test_client_errors_are_not_retried_and_show_the_server_message(status: int) -> None:
    played = scene(saying(f"{status} X", '{"detail": "only ten queries, please"}'), found)
    assert played.cause.startswith(f"status {status} ")
    assert played.cause.endswith(": only ten queries, please")
    assert played.client.counts.requests == 1
    assert played.client.counts.failures == {f"status {status}": 1}


def test_connection_refused() -> None:
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


def test_retry_after_beyond_the_deadline_fails_at_once() -> None:
    played = scene(saying("503 Service Unavailable", "closed", retry_after="120"), found)
    assert played.cause.startswith("status 503 Service Unavailable: closed; the next retry, in 120 s")
    assert played.seconds < 1.0
    assert played.client.counts.requests == 1
    assert played.client.counts.failures == {"status 503": 1}


def test_call_ends_at_the_deadline() -> None:
    played = scene(slowly(3.0), deadline=0.5, timeout=0.3)
    assert 0.45 <= played.seconds <= 0.9
    assert "0.5 s; last of 1 failed attempts: no response within 0.3 s" in played.cause
    assert played.client.counts.failures == {"time-out": 1, "cut off": 1}


def test_no_retry_starts_after_the_deadline() -> None:
    played = scene(saying("503 Service Unavailable", "busy"), deadline=1.5)
    assert played.seconds <= 2.5
    assert played.cause.endswith("deadline of 1.5 s")
    assert played.client.counts.requests == sum(played.client.counts.failures.values()) > 1


def test_deadline_holds_while_waiting_for_a_slot_and_for_the_rate() -> None:
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


def test_concurrency_is_limited() -> None:
    async def play() -> tuple[Loopback, list[list[list[Hit] | SearchUnavailable]]]:
        async with loopback(slowly(0.02)) as server:
            client = SearchClient(server.url, concurrency=3)
            return server, await asyncio.gather(*(client.search([f"q{n}"], 1) for n in range(15)))

    server, outcomes = asyncio.run(play())
    assert server.most_in_flight == 3
    assert outcomes == [[expected(f"q{n}", 1)] for n in range(15)]


def test_rate_is_limited() -> None:
    played = scene(found, queries=tuple(f"q{n}" for n in range(11)), batch=1, rate=50.0)
    assert all(not isinstance(outcome, SearchUnavailable) for outcome in played.outcomes)
    # The first goes at once, the others 20 ms apart, less the 30 ms that a full bucket is ahead.
    assert 0.169 <= played.seconds <= 1.0


def test_long_lists_are_split_into_independent_batches() -> None:
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


def test_cancelled_call_frees_its_slot() -> None:
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


def test_connections_are_reused_across_consecutive_event_loops() -> None:
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


def test_client_works_after_close() -> None:
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


def test_token_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def echo(request: Request) -> bytes:
        return raw("401 Unauthorized", f"who is {request.headers['authorization']}?")

    with caplog.at_level(logging.DEBUG):
        played = scene(echo, token=SECRET)
    assert played.server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert played.cause == "status 401 Unauthorized: who is Bearer [token]?"
    assert SECRET not in caplog.text + repr(played.client) + repr(played.outcomes) + repr(played.client.counts)


def test_token_is_redacted_before_truncation() -> None:
    played = scene(saying("400 Bad Request", "x" * 295 + SECRET), token=SECRET)
    assert played.cause == f"status 400 Bad Request: {'x' * 295}[toke…"


def test_token_in_an_invalid_response_is_redacted() -> None:
    score = "x" * 260 + SECRET + "y" * 100_000
    body = json.dumps({"result": [[{"document": "d", "score": score}]]})
    said = scene(saying("200 OK", body), token=SECRET, deadline=0.05).cause
    assert "a score is 'xxx" in said
    assert "s3c" not in said
    assert len(said) < 400


def test_cookies_are_not_kept() -> None:
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
def test_invalid_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SearchClient(**{"url": "http://localhost:8000", **options})
    assert words in str(refused.value)
    assert "hidden" not in str(refused.value)


READY = {"status": "ready", "index": "/somewhere/wiki18", "kind": "bm25", "passages": 7, "version": "1"}
DEAD = "http://127.0.0.1:1"


@contextmanager
def serving_identity(status: int, body: str, searched: int = 501) -> Iterator[str]:
    class Desk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/readyz" and self.headers["authorization"] == "Bearer t"
            content = body.encode() if known else b"{}"
            self.send_response(status if known else 401)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            """Only a search finds out whether a server of others works."""
            self.rfile.read(int(self.headers["content-length"]))
            content = b'{"result": [[]]}' if self.path == "/retrieve" and searched == 200 else b"{}"
            self.send_response(searched)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Desk) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("path", ["", "/retrieve"])
def test_identity_of_a_server(path: str) -> None:
    with serving_identity(200, json.dumps(READY)) as url:
        assert served_index(url + path, token="t", patience=9) == {"name": "wiki18", "kind": "bm25", "passages": 7}
        assert served_index(url + path, patience=9) is None


@pytest.mark.parametrize(("status", "body"), [(404, "{}"), (200, "ready"), (200, '{"index": 3}')])
def test_server_without_identity(status: int, body: str) -> None:
    with serving_identity(status, body) as url:
        assert served_index(url, token="t", patience=9) is None


def test_unreachable_server_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"the search server http://127.0.0.1:1 does not answer .*; start it"):
        served_index(DEAD, patience=0.2)


@pytest.mark.parametrize(
    ("status", "body", "searched"), [(200, json.dumps(READY), 501), (404, "{}", 200), (200, "welcome", 200)]
)
def test_ready_by_readyz_or_by_a_search(status: int, body: str, searched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t")
    with serving_identity(status, body, searched) as url:
        require_ready(url, ServiceConfig(token_env="TOKEN"))


def test_server_without_search_is_not_ready() -> None:
    with (
        serving_identity(404, "{}", 404) as url,
        pytest.raises(InputError, match=rf"{url} does not answer \(status 404"),
    ):
        require_ready(url)


def test_other_backends_are_not_contacted() -> None:
    for name in (None, "index", "web:serper", "import:a.b"):
        require_ready(name)


def test_starting_server_is_waited_for() -> None:
    with serving_identity(200, json.dumps(READY)) as url:
        port = int(url.rpartition(":")[2])
    late = Thread(target=_serve_once, args=(port,))
    late.start()
    require_ready(f"http://127.0.0.1:{port}")
    late.join()


def _serve_once(port: int) -> None:
    """Listens only after the first attempt has had the time to fail."""
    sleep(0.2)
    body = json.dumps(READY).encode()
    with create_server(("127.0.0.1", port)) as listener:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
