"""Web search against loopback servers with responses written from the documentation of each provider."""

import asyncio
import json
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.http.client import RequestCounts
from sleuth.records import Hit, Passage
from sleuth.retrieval.web.fetch import Address, Fetcher, Page
from sleuth.retrieval.web.search import PROVIDERS, Keys, KeyTransport, WebQuery, WebResult, WebSearch, relevant_text

KEY = "s3cret/Key+0123456789="
ENGINE = "engine:id-42"
ENVIRONMENT = {
    "SERPER_API_KEY": KEY,
    "SERPAPI_API_KEY": KEY,
    "GOOGLE_API_KEY": KEY,
    "GOOGLE_CSE_ID": ENGINE,
    "BRAVE_API_KEY": KEY,
}

OSLO = {"title": "Oslo - Wikipedia", "snippet": "Oslo is the capital of Norway.", "link": "https://example.org/oslo"}
BERGEN = {"title": "Bergen", "snippet": "Bergen is a city on the west coast ...", "link": "https://example.org/bergen"}

ANSWERS: dict[str, dict[str, Any]] = {
    "serper": {
        "searchParameters": {"q": "norway", "type": "search", "engine": "google"},
        "knowledgeGraph": {"title": "Norway", "type": "Country"},
        "organic": [{**OSLO, "position": 1}, {**BERGEN, "position": 2, "date": "Jan 5, 2020"}],
        "credits": 1,
    },
    "serpapi": {
        "search_metadata": {"id": "1", "status": "Success"},
        "search_parameters": {"engine": "google", "q": "norway"},
        "organic_results": [{**OSLO, "position": 1, "displayed_link": "example.org"}, {**BERGEN, "position": 2}],
    },
    "google": {
        "kind": "customsearch#search",
        "searchInformation": {"totalResults": "2"},
        "items": [
            {**OSLO, "kind": "customsearch#result", "htmlSnippet": "<b>Oslo</b> is the capital"},
            {**BERGEN, "displayLink": "example.org"},
        ],
    },
    "brave": {
        "type": "search",
        "query": {"original": "norway"},
        "web": {
            "type": "search",
            "results": [
                {"title": row["title"], "url": row["link"], "description": row["snippet"], "language": "en"}
                for row in (OSLO, BERGEN)
            ],
        },
    },
}

HITS = [
    Hit(Passage(row["link"], f'"{row["title"]}"\n{row["snippet"]}', {"url": row["link"], "title": row["title"]}), score)
    for row, score in ((OSLO, 1.0), (BERGEN, 0.5))
]


@dataclass(frozen=True)
class Sent:
    """A request as it came over the wire."""

    head: str
    body: bytes

    @property
    def target(self) -> str:
        return self.head.split()[1]

    @property
    def fields(self) -> dict[str, str]:
        if self.body:
            return {name: str(value) for name, value in json.loads(self.body).items()}
        return {name: value for name, (value,) in parse_qs(urlsplit(self.target).query).items()}

    def header(self, name: str) -> str | None:
        lines = (line.partition(": ") for line in self.head.split("\r\n")[1:])
        return next((value for key, _, value in lines if key.lower() == name.lower()), None)


Replies = Callable[[Sent], Awaitable[bytes]]


def reply(body: object, status: str = "200 OK", *headers: str, media: str = "application/json") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media}", f"Content-Length: {len(content)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


class Gateway:
    """A server that gives its replies one after the other, the last for ever, and keeps what it was sent."""

    def __init__(self, *replies: bytes | Replies) -> None:
        self._replies = replies
        self.sent: list[Sent] = []
        self.url = ""

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = Sent(head, b"").header("content-length")
            self.sent.append(Sent(head, await reader.readexactly(int(length or 0))))
            chosen = self._replies[min(len(self.sent), len(self._replies)) - 1]
            writer.write(chosen if isinstance(chosen, bytes) else await chosen(self.sent[-1]))
            await writer.drain()
        except ConnectionError:
            writer.transport.abort()
        finally:
            writer.close()

    @asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._talk, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self.url
        finally:
            server.close()


Outcome = list[Hit] | SearchUnavailable


def search(
    gateway: Gateway, queries: list[str], k: int = 3, provider: str = "serper", **settings: Any
) -> tuple[list[Outcome], WebSearch]:
    async def run() -> tuple[list[Outcome], WebSearch]:
        async with gateway.open() as url:
            options: dict[str, Any] = {"base_url": url, "environment": ENVIRONMENT, "deadline": 5.0} | settings
            web = WebSearch(provider, **options)
            return await web.search(queries, k), web

    return asyncio.run(run())


def unavailable(gateway: Gateway, provider: str = "serper", **settings: Any) -> tuple[SearchUnavailable, WebSearch]:
    (outcome,), web = search(gateway, ["norway"], provider=provider, **settings)
    assert isinstance(outcome, SearchUnavailable)
    assert outcome.query == "norway"
    return outcome, web


@pytest.mark.parametrize("provider", PROVIDERS)
def test_results_are_hits_best_first(provider: str) -> None:
    (hits,), web = search(Gateway(reply(ANSWERS[provider])), ["norway"], provider=provider)
    assert hits == HITS
    assert web.counts == RequestCounts(requests=1)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_more_hits_than_asked_for(provider: str) -> None:
    (hits,), _ = search(Gateway(reply(ANSWERS[provider])), ["norway"], 1, provider)
    assert hits == HITS[:1]


KEY_PLACES: dict[str, Callable[[Sent], str | None]] = {
    "serper": lambda sent: sent.header("X-API-KEY"),
    "serpapi": lambda sent: sent.fields["api_key"],
    "google": lambda sent: sent.fields["key"],
    "brave": lambda sent: sent.header("X-Subscription-Token"),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_key_is_sent_where_the_provider_expects_it(provider: str) -> None:
    gateway = Gateway(reply(ANSWERS[provider]))
    search(gateway, ["norway"], provider=provider)
    assert KEY_PLACES[provider](gateway.sent[0]) == KEY


ASKED = {
    "serper": ("POST /search", {"q": "fjords", "num": "10", "gl": "at", "hl": "de"}),
    "serpapi": (
        "GET /search?",
        {"engine": "google", "q": "fjords", "num": "10", "gl": "at", "hl": "de", "api_key": KEY},
    ),
    "google": (
        "GET /customsearch/v1?",
        {"q": "fjords", "num": "10", "gl": "at", "hl": "de", "key": KEY, "cx": ENGINE},
    ),
    "brave": (
        "GET /res/v1/web/search?",
        {
            "q": "fjords",
            "count": "10",
            "country": "AT",
            "search_lang": "de",
            "text_decorations": "false",
            "result_filter": "web",
        },
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_query_language_and_country_are_sent(provider: str) -> None:
    gateway = Gateway(reply(ANSWERS[provider]))
    search(gateway, ["fjords"], provider=provider, language="de", country="At")
    (sent,) = gateway.sent
    line, fields = ASKED[provider]
    assert sent.head.startswith(line)
    assert sent.fields == fields


@pytest.mark.parametrize("provider", PROVIDERS)
def test_language_and_country_are_left_to_the_provider_where_not_given(provider: str) -> None:
    gateway = Gateway(reply(ANSWERS[provider]))
    search(gateway, ["fjords"], provider=provider)
    assert not {"gl", "hl", "country", "search_lang"} & set(gateway.sent[0].fields)


@pytest.mark.parametrize(
    ("provider", "name", "k", "count"),
    [("serper", "num", 50, 50), ("serper", "num", 1, 10), ("google", "num", 50, 10), ("brave", "count", 50, 20)],
)
def test_number_of_results_requested(provider: str, name: str, k: int, count: int) -> None:
    assert PROVIDERS[provider].request_fields(WebQuery("fjords", k))[name] == count


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("query", ["x" * 10_000, "word " * 2_000, "half \ud83d a pair", "東京 " * 900, "a\0b\nc"])
def test_queries_are_shortened_for_the_provider(provider: str, query: str) -> None:
    gateway = Gateway(reply(ANSWERS[provider]))
    (hits,), _ = search(gateway, [query], provider=provider)
    assert hits == HITS
    sent = gateway.sent[0].fields["q"]
    assert 0 < len(sent) <= 400
    assert len(sent.split()) <= 50
    assert sent.isprintable()


def test_blank_queries_are_not_sent() -> None:
    gateway = Gateway(reply(ANSWERS["serper"]))
    outcomes, _ = search(gateway, ["", " \n", "\0", "norway"])
    assert outcomes == [[], [], [], HITS]
    assert len(gateway.sent) == 1


def test_repeated_query_is_sent_once() -> None:
    gateway = Gateway(reply(ANSWERS["serper"]))
    outcomes, _ = search(gateway, ["norway", "oslo", "norway"])
    assert outcomes == [HITS, HITS, HITS]
    assert sorted(sent.fields["q"] for sent in gateway.sent) == ["norway", "oslo"]


def test_no_queries() -> None:
    assert search(Gateway(reply({})), [])[0] == []


@pytest.mark.parametrize(
    ("provider", "answer", "found"),
    [
        (
            "serper",
            {"answerBox": {"title": "Oslo", "link": "https://a.example", "snippet": "Oslo"}, "organic": [BERGEN]},
            [
                WebResult("https://a.example", "Oslo", "Oslo"),
                WebResult(BERGEN["link"], BERGEN["title"], BERGEN["snippet"]),
            ],
        ),
        (
            "serper",
            {"answerBox": {"title": "Oslo", "link": OSLO["link"], "answer": "Oslo"}, "organic": [OSLO]},
            [WebResult(OSLO["link"], "Oslo", "Oslo")],
        ),
        ("serper", {"answerBox": {"answer": "42"}, "organic": []}, []),
        ("serper", {"searchParameters": {"q": "nothing"}}, []),
        ("serper", {"organic": [{"title": "No link"}, {"link": "ftp://a.example"}, "row", {"link": 3}]}, []),
        (
            "serper",
            {"organic": [{"link": "https://a.example", "title": "A\nB"}]},
            [WebResult("https://a.example", "A B", "")],
        ),
        (
            "serpapi",
            {
                "search_metadata": {"status": "Success"},
                "search_information": {"organic_results_state": "Fully empty"},
                "error": "Google hasn't returned any results for this query.",
            },
            [],
        ),
        ("google", {"kind": "customsearch#search", "searchInformation": {"totalResults": "0"}}, []),
        ("brave", {"type": "search", "query": {"original": "nothing"}}, []),
        (
            "brave",
            {
                "web": {
                    "results": [
                        {
                            "title": "Oslo&#x27;s <strong>fjord</strong>",
                            "url": "https://a.example/?x=1&copy=2",
                            "description": "<strong>Oslo</strong> &amp; its fjord, a &lt; b",
                        }
                    ]
                }
            },
            [WebResult("https://a.example/?x=1&copy=2", "Oslo's fjord", "Oslo & its fjord, a < b")],
        ),
    ],
)
def test_response_formats(provider: str, answer: object, found: list[WebResult]) -> None:
    assert PROVIDERS[provider].parse(answer) == found


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("answer", [{}, [], None, 7, {"organic": 3, "organic_results": {}, "items": "x", "web": 1}])
def test_invalid_response_is_not_an_empty_result(provider: str, answer: object) -> None:
    with pytest.raises(ValueError, match=r"no list|of type"):
        PROVIDERS[provider].parse(answer)


def test_failed_serpapi_search_is_an_error() -> None:
    answer = {"search_metadata": {"status": "Error"}, "error": "We couldn't get valid results.", "organic_results": []}
    with pytest.raises(ValueError, match="valid results"):
        PROVIDERS["serpapi"].parse(answer)


@pytest.mark.parametrize(
    "broken",
    [
        reply({"message": "oops"}, "500 Internal Server Error"),
        reply({"message": "later"}, "503 Service Unavailable"),
        reply({"message": "slow down"}, "429 Too Many Requests"),
        reply({"message": "slow down"}, "429 Too Many Requests", "Retry-After: 0"),
        reply(b"<html>a captive portal"),
        reply({"nothing": "known"}),
        reply(ANSWERS["serper"])[:-5],
        b"",
        b"no http\r\n\r\n",
    ],
)
def test_transient_failures_are_retried(broken: bytes) -> None:
    gateway = Gateway(broken, reply(ANSWERS["serper"]))
    (hits,), web = search(gateway, ["norway"])
    assert hits == HITS
    assert web.counts.requests == len(gateway.sent) == 2


def test_retry_after_is_honoured() -> None:
    gateway = Gateway(reply({}, "429 Too Many Requests", "Retry-After: 0.3"), reply(ANSWERS["serper"]))
    started = time.monotonic()
    (hits,), _ = search(gateway, ["norway"])
    assert hits == HITS
    assert time.monotonic() - started >= 0.3


def test_retry_after_beyond_the_deadline_fails_at_once() -> None:
    started = time.monotonic()
    outcome, _ = unavailable(Gateway(reply({}, "429 Too Many Requests", "Retry-After: 3600")))
    assert "status 429" in outcome.cause
    assert "deadline of 5 s" in outcome.cause
    assert time.monotonic() - started < 2


def test_retries_end_at_the_deadline() -> None:
    gateway = Gateway(reply({"message": "oops"}, "500 Internal Server Error"))
    outcome, _ = unavailable(gateway, deadline=0.5)
    assert "status 500 Internal Server Error: oops" in outcome.cause
    assert len(gateway.sent) > 1


@pytest.mark.parametrize(
    ("provider", "status", "body", "word"),
    [
        ("serper", "400 Bad Request", {"message": "Not enough credits", "statusCode": 400}, "quota"),
        ("serpapi", "429 Too Many Requests", {"error": "Your account has run out of searches."}, "quota"),
        (
            "google",
            "429 Too Many Requests",
            {
                "error": {
                    "code": 429,
                    "message": "Quota exceeded for quota metric 'Queries' and limit 'Queries per day'",
                }
            },
            "quota",
        ),
        ("serper", "403 Forbidden", {"message": "Unauthorized.", "statusCode": 403}, "SERPER_API_KEY"),
        ("serpapi", "401 Unauthorized", {"error": "Invalid API key."}, "SERPAPI_API_KEY"),
        ("google", "400 Bad Request", {"error": {"message": "API key not valid."}}, "API key not valid"),
        ("google", "403 Forbidden", {"error": {"message": "not enabled"}}, "GOOGLE_API_KEY and GOOGLE_CSE_ID"),
        (
            "brave",
            "422 Unprocessable Entity",
            {"type": "ErrorResponse", "error": {"code": "VALIDATION", "detail": "Unable to validate"}},
            "Unable to validate",
        ),
        ("brave", "302 Found", {}, "status 302"),
    ],
)
def test_permanent_failures_are_not_retried(provider: str, status: str, body: object, word: str) -> None:
    gateway = Gateway(reply(body, status, "Location: /elsewhere"))
    outcome, _ = unavailable(gateway, provider)
    assert word in outcome.cause
    assert len(gateway.sent) == 1


async def never(sent: Sent) -> bytes:
    await asyncio.sleep(60)
    return b""


def test_search_ends_at_the_deadline() -> None:
    started = time.monotonic()
    outcome, web = unavailable(Gateway(never), deadline=0.4)
    assert time.monotonic() - started < 2
    assert "within" in outcome.cause
    assert web.counts.failures["time-out"] >= 1


def test_one_query_that_fails_leaves_the_others_alone() -> None:
    async def picky(sent: Sent) -> bytes:
        return reply({"message": "no"}, "400 Bad Request") if sent.fields["q"] == "b" else reply(ANSWERS["serper"])

    (first, second, third), _ = search(Gateway(picky), ["a", "b", "c"])
    assert first == third == HITS
    assert isinstance(second, SearchUnavailable)


async def echo(sent: Sent) -> bytes:
    return reply({"message": f"cannot serve {sent.head}"}, "500 Internal Server Error")


async def echo_forbidden(sent: Sent) -> bytes:
    return reply(f"who is {sent.head}?".encode(), "403 Forbidden")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "told", [echo, echo_forbidden, never, b"", b"garbage\r\n\r\n", reply({"error": KEY}), reply({}, "302 Found")]
)
def test_key_is_never_shown(
    provider: str, told: bytes | Replies, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    outcome, web = unavailable(Gateway(told), provider, deadline=0.3)
    assert outcome.__context__ is None
    assert outcome.__cause__ is None
    chain = "".join(traceback.format_exception(outcome))
    places = [str(outcome), repr(outcome), str(vars(outcome)), chain, repr(web), caplog.text, *capfd.readouterr()]
    said = "\n".join(places)
    assert "httpx" in caplog.text or "httpcore" in caplog.text
    for secret in (KEY, "s3cret", "Key+0123456789", "Key%2B0123456789"):
        assert secret not in said


@pytest.mark.parametrize("start", [0, 150, 185, 195, 199])
@pytest.mark.parametrize("form", ["{}", '{{"message": "{}"}}', '{{"error": {{"detail": "{}"}}}}'])
def test_truncated_message_contains_no_part_of_the_key(start: int, form: str) -> None:
    escaped = KEY.replace("/", "\\/").replace("=", "\\u003d") if form != "{}" else KEY
    message = form.format("x" * start + escaped + " and more" * 40).encode()
    outcome, _ = unavailable(Gateway(reply(message, "400 Bad Request")))
    assert "status 400" in outcome.cause
    assert "s3c" not in outcome.cause


@pytest.mark.parametrize("provider", PROVIDERS)
def test_key_is_not_logged(provider: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    search(Gateway(reply(ANSWERS[provider])), ["norway"], provider=provider)
    assert "HTTP Request" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("provider", "missing"),
    [
        ("serper", "SERPER_API_KEY"),
        ("serpapi", "SERPAPI_API_KEY"),
        ("google", "GOOGLE_API_KEY"),
        ("google", "GOOGLE_CSE_ID"),
        ("brave", "BRAVE_API_KEY"),
    ],
)
@pytest.mark.parametrize("value", [None, "", " \n"])
def test_missing_key_is_named(provider: str, missing: str, value: str | None) -> None:
    environment = {name: key for name, key in ENVIRONMENT.items() if name != missing}
    if value is not None:
        environment[missing] = value
    with pytest.raises(ConfigError, match=missing):
        WebSearch(provider, environment=environment)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", f" {KEY}\n")
    assert repr(WebSearch("brave")) == "WebSearch(https://api.search.brave.com/res/v1/web/search, Keys(BRAVE_API_KEY))"


def test_key_no_header_can_carry_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="SERPER_API_KEY") as caught:
        WebSearch("serper", environment={"SERPER_API_KEY": "s3cret\r\nHost: evil"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"provider": "altavista"}, "'altavista'; expected one of serper, serpapi, google, brave"),
        ({"language": "german!"}, "'german!'"),
        ({"country": "Germany"}, "'Germany'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"rate": -1}, "rate is -1"),
        ({"deadline": 0}, "deadline is 0"),
        ({"base_url": "ftp://gateway.example"}, "'ftp://gateway.example'"),
        ({"base_url": "http://user:pass@gateway.example"}, "password"),
        ({"base_url": "http://[::1"}, "'http://[::1'"),
        ({"proxy": "socks5://127.0.0.1:1080"}, "socks5"),
        ({"proxy": "http://user:pass@[::1"}, "proxy"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebSearch(**{"provider": "serper", "environment": ENVIRONMENT} | settings)
    assert problem in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(("base", "path"), [("", "/search"), ("/", "/search"), ("/v2/serper", "/v2/serper")])
def test_base_url_replaces_the_provider(base: str, path: str) -> None:
    gateway = Gateway(reply(ANSWERS["serper"]))

    async def run() -> None:
        async with gateway.open() as url:
            await WebSearch("serper", base_url=url + base, environment=ENVIRONMENT).search(["norway"], 1)

    asyncio.run(run())
    assert gateway.sent[0].target == path


@pytest.mark.parametrize("provider", PROVIDERS)
def test_searches_go_through_the_proxy(provider: str) -> None:
    proxy = Gateway(reply(ANSWERS[provider]))

    async def run() -> list[Outcome]:
        async with proxy.open() as url:
            address = url.replace("http://", "http://user:pass@")
            web = WebSearch(provider, base_url="http://search.example", proxy=address, environment=ENVIRONMENT)
            return await web.search(["norway"], 3)

    assert asyncio.run(run()) == [HITS]
    assert proxy.sent[0].target.startswith("http://search.example/")
    assert proxy.sent[0].header("proxy-authorization") == "Basic dXNlcjpwYXNz"
    assert KEY_PLACES[provider](proxy.sent[0]) == KEY


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert search(Gateway(reply(ANSWERS["serper"])), ["norway"])[0] == [HITS]


def test_concurrency_is_limited_in_every_loop() -> None:
    flying = most = 0

    async def slow(sent: Sent) -> bytes:
        nonlocal flying, most
        flying, most = flying + 1, max(most, flying + 1)
        await asyncio.sleep(0.02)
        flying -= 1
        return reply(ANSWERS["serper"])

    gateway = Gateway(slow)

    async def opened() -> WebSearch:
        async with gateway.open() as url:
            return WebSearch("serper", base_url=url, environment=ENVIRONMENT, concurrency=3)

    async def at_once(web: WebSearch) -> list[list[Outcome]]:
        async with gateway.open(int(gateway.url.rpartition(":")[2])), asyncio.timeout(5):
            return await asyncio.gather(*(web.search([f"{number}"], 3) for number in range(9)))

    web = asyncio.run(opened())
    for _ in range(2):
        assert asyncio.run(at_once(web)) == [[HITS]] * 9
    assert most == 3


def test_connections_are_kept_from_one_search_to_the_next() -> None:
    opened: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                await reader.readexactly(int(Sent(head, b"").header("content-length") or 0))
                writer.write(reply(ANSWERS["serper"]).replace(b"Connection: close\r\n", b""))
        except asyncio.IncompleteReadError:
            writer.close()

    async def run() -> list[list[Outcome]]:
        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            web = WebSearch("serper", base_url=url, environment=ENVIRONMENT)
            outcomes = [await web.search([f"{number}"], 3) for number in range(4)]
            for writer in opened:
                writer.close()
            return outcomes

    assert asyncio.run(run()) == [[HITS]] * 4
    assert len(opened) == 1


def test_rate_is_limited() -> None:
    started = time.monotonic()
    search(Gateway(reply(ANSWERS["serper"])), ["a", "b", "c", "d"], rate=10)
    assert time.monotonic() - started >= 0.25


TEXT = "Oslo is the capital of Norway. It lies at the head of the Oslofjord and has 700,000 people."
WEATHER = "<p>Paragraph {} tells of the weather of the north and of its mild winters near the sea.</p>"
TRAMS = "<p>Paragraph {} tells of trams, buses and ferries that cross the wide harbour all day.</p>"
PAGE = f"""<html><head><title>Oslo</title></head><body><nav>Home | About | Contact</nav><article><h1>Oslo</h1>
{"".join(map(WEATHER.format, range(40)))}<p>{TEXT}</p>{"".join(map(TRAMS.format, range(40)))}
</article></body></html>"""


def anywhere(address: Address) -> bool:
    return True


def found_with_pages(
    page: Callable[[Sent], Awaitable[bytes]], row: dict[str, str] = OSLO, **settings: Any
) -> tuple[list[Hit], WebSearch]:
    """The hits of a search whose one result is a page of the same server; fetching it from loopback is permitted."""

    async def both(sent: Sent) -> bytes:
        if sent.target == "/search":
            return reply({"organic": [{**row, "link": f"{gateway.url}/page"}]})
        return await page(sent)

    gateway = Gateway(both)
    fetcher = settings.pop("pages", Fetcher(permitted=anywhere, ports=None))
    (hits,), web = search(gateway, ["the capital of Norway"], pages=fetcher, **settings)
    assert isinstance(hits, list)
    assert [hit.passage.id for hit in hits] == [f"{gateway.url}/page"]
    return hits, web


async def whole_page(sent: Sent) -> bytes:
    return reply(PAGE.encode(), media="text/html; charset=utf-8")


async def plain_page(sent: Sent) -> bytes:
    return reply(f"{'Weather. ' * 400}\n{TEXT}".encode(), media="text/plain")


@pytest.mark.parametrize("page", [whole_page, plain_page])
@pytest.mark.parametrize("snippet", [OSLO["snippet"], ""])
def test_with_pages_a_hit_holds_the_text_around_the_snippet(page: Replies, snippet: str) -> None:
    (hit,), web = found_with_pages(page, {**OSLO, "snippet": snippet})
    assert hit.passage.title == OSLO["title"]
    assert TEXT in hit.passage.text
    assert len(hit.passage.text.split()) <= 300
    assert "Contact" not in hit.passage.text
    assert web.reader is not None
    assert web.reader.counts["read"] == 1


async def missing(sent: Sent) -> bytes:
    return reply(b"", "404 Not Found", media="text/html")


async def drawing(sent: Sent) -> bytes:
    return reply(b"\x89PNG", media="image/png")


@pytest.mark.parametrize(
    ("page", "settings", "count"),
    [
        (missing, {}, "failed"),
        (drawing, {}, "refused"),
        (whole_page, {"pages": True}, "refused"),
        (never, {"deadline": 1.5}, "late"),
    ],
)
def test_unavailable_page_keeps_the_snippet(page: Replies, settings: dict[str, Any], count: str) -> None:
    started = time.monotonic()
    (hit,), web = found_with_pages(page, **settings)
    assert hit.passage.text == OSLO["snippet"]
    assert web.reader is not None
    assert web.reader.counts[count] == 1
    assert web.reader.counts["read"] == 0
    assert time.monotonic() - started < 8


async def slow_page(sent: Sent) -> bytes:
    return reply(b"<p>a " * 16_000, media="text/html")


def page_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("page")}


def test_slow_pages_do_not_delay_the_search() -> None:
    before = page_threads()

    async def both(sent: Sent) -> bytes:
        if sent.target == "/search":
            return reply({"organic": [{**OSLO, "link": f"{gateway.url}/page/{number}"} for number in range(12)]})
        return await slow_page(sent)

    gateway = Gateway(both)
    started = time.monotonic()
    fetcher = Fetcher(permitted=anywhere, ports=None)
    (hits,), web = search(gateway, ["norway"], 12, pages=fetcher, deadline=0.3)
    assert time.monotonic() - started < 1.5
    assert isinstance(hits, list)
    assert [hit.passage.text for hit in hits] == [OSLO["snippet"]] * 12
    assert web.reader is not None
    assert web.reader.counts["late"] + web.reader.counts["read"] == 12
    assert web.reader.counts["late"] > 0
    assert 0 < len(page_threads() - before) <= 2


async def another_page(sent: Sent) -> bytes:
    return reply(b"<p>Nothing here is about that city.</p>", media="text/html")


def test_changed_page_keeps_the_snippet() -> None:
    (hit,), web = found_with_pages(another_page)
    assert hit.passage.text == OSLO["snippet"]
    assert web.reader is not None
    assert web.reader.counts["read"] == 1


def test_unrelated_page_without_snippet_has_no_text() -> None:
    (hit,), _ = found_with_pages(another_page, {**OSLO, "snippet": ""})
    assert hit.passage.text == ""


def test_errors_show_the_request_without_keys() -> None:
    gateway = Gateway(b"")
    keys = Keys({"X-API-KEY": "SERPER_API_KEY"}, {"key": "GOOGLE_API_KEY"}, ENVIRONMENT)

    async def run() -> httpx.Request:
        async with (
            gateway.open() as url,
            httpx.AsyncClient(transport=KeyTransport(keys, httpx.AsyncHTTPTransport())) as client,
        ):
            with pytest.raises(httpx.RequestError) as caught:
                await client.get(url, params={"q": "norway"})
            return caught.value.request

    request = asyncio.run(run())
    assert gateway.sent[0].fields == {"q": "norway", "key": KEY}
    assert gateway.sent[0].header("x-api-key") == KEY
    assert "norway" in str(request.url)
    assert "s3cret" not in f"{request.url}{request.headers}"


URL = "https://pages.example/"


@pytest.mark.parametrize(
    ("content", "charset", "markup", "text"),
    [
        ("<p>Łódź".encode(), "utf-8", True, "<p>Łódź"),
        ("<p>Łódź".encode("cp1250"), "windows-1250", True, "<p>Łódź"),
        ("<meta charset=windows-1250>Łódź".encode("cp1250"), "", True, "<meta charset=windows-1250>Łódź"),
        ("<meta charset=latin1>Łódź".encode(), "utf-8", True, "<meta charset=latin1>Łódź"),
        ("charset=utf-16".encode("latin-1"), "", False, "charset=utf-16"),
        ("“quoted”".encode("cp1252"), "iso-8859-1", False, "“quoted”"),
        ("東京".encode("shift_jis"), "Shift_JIS", False, "東京"),
        ("東京".encode("euc_jp"), "EUC-JP", False, "東京"),
        ("Łódź".encode("utf-16"), "latin-1", False, "Łódź"),
        ("café".encode("latin-1"), "utf-8", False, "café"),
        (b"plain", "", False, "plain"),
        (b"plain", "no such encoding", False, "plain"),
        (b"plain", "zlib", False, "plain"),
        (b"plain", "rot13", False, "plain"),
        (b"a\0b\r\nc", "ascii", False, "ab\nc"),
    ],
)
def test_page_encoding_is_detected(content: bytes, charset: str, markup: bool, text: str) -> None:
    assert Page(URL, content, markup, charset).text == text


@pytest.mark.parametrize("charset", ["punycode", ""])
def test_encodings_that_take_minutes_are_not_used(charset: str) -> None:
    page = Page(URL, b"<meta charset=punycode>a-" + b"b9" * 500_000, True, charset)
    started = time.process_time()
    relevant_text(page, "what is not there", "query")
    assert time.process_time() - started < 5


def test_snippet_of_a_page_of_plain_text_is_found_in_it() -> None:
    page = Page(URL, b"First paragraph.\nOslo is the capital of Norway and more.\nLast one.", markup=False)
    assert relevant_text(page, "Oslo is the capital", "query") == page.content.decode()
