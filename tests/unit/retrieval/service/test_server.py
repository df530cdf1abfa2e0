"""Retrieval server: formats, limits, errors, pages, metrics and the docs page."""

import asyncio
import base64
import hashlib
import html
import json
import math
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sleuth.errors import InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.retriever import SearchOutcome
from sleuth.retrieval.service.openapi import ANSWERS, PAGE, DocsPage, ShardStatus
from sleuth.retrieval.service.server import Facts, advertise, application, encode_results
from sleuth.retrieval.wire import AccessRequest, Limits, RetrieveRequest, Row, parse_hits, scored_row

FACTS = Facts("wiki", "bm25", 4)
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]
PASSAGES = [Passage(str(number), f'"Title {number}"\ntext {number}', {"url": f"u/{number}"}) for number in range(20)]


class Shelf:
    """Finds the first k of its passages for every query; "none" finds nothing, "broken" has no answer."""

    def __init__(self, passages: Sequence[Passage] = PASSAGES, score: float = 8.0) -> None:
        self.asked: list[str] = []
        self.depths: list[int] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self._hits = [Hit(passage, score / 2**place) for place, passage in enumerate(passages)]

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        self.asked += queries
        self.depths.append(k)
        self.begun.set()
        await self.open.wait()
        return [self._answer(query, k) for query in queries]

    def _answer(self, query: str, k: int) -> SearchOutcome:
        if query == "broken":
            return SearchUnavailable(query, "the index is being moved")
        return [] if query == "none" else self._hits[:k]


class Pages:
    """Two pages."""

    def get(self, url: str) -> Row | None:
        return {"url": url, "contents": "text"} if url in ("a", "b") else None


def served(retriever: Shelf | None = None, **options: Any) -> FastAPI:
    return application(retriever or Shelf(), FACTS, **options)


def asked(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """The answer to one request, in process."""

    headers = {"content-type": "application/json"} | options.pop("headers", {})

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(ask())


def result(app: FastAPI, body: dict[str, Any]) -> Any:
    answer = asked(app, "POST", "/retrieve", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["result"]


def refusal(app: FastAPI, status: int, **options: Any) -> str:
    """The sentence with which a search is refused."""
    answer = asked(app, "POST", "/retrieve", **options)
    assert (answer.status_code, list(answer.json())) == (status, ["detail"]), answer.text
    sentence = answer.json()["detail"]
    assert isinstance(sentence, str)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
def test_one_result_per_query(count: int) -> None:
    rows = [{"id": each.id, "contents": each.contents, **each.extra} for each in PASSAGES[:3]]
    for scores in (True, False):
        answers = result(served(), {"queries": ["q"] * count, "topk": 3, "return_scores": scores})
        expected = [{"document": row, "score": 8 / 2**place} if scores else row for place, row in enumerate(rows)]
        assert answers == [expected] * count


def test_rows_are_bare_without_return_scores() -> None:
    ((row,),) = result(served(k=1), {"queries": ["q"]})
    assert row == {"id": "0", "contents": '"Title 0"\ntext 0', "url": "u/0"}


@pytest.mark.parametrize("topk", [{}, {"topk": None}, {"topk": 0}])
def test_missing_topk_is_the_default(topk: dict[str, Any]) -> None:
    assert [len(hits) for hits in result(served(k=5), {"queries": ["q"], **topk})] == [5]


def test_empty_result_is_valid() -> None:
    assert result(served(), {"queries": ["none", "q", "none"], "topk": 1})[::2] == [[], []]


def test_unknown_fields_are_ignored() -> None:
    assert len(result(served(), {"queries": ["q"], "topk": 1, "batch_mode": True, "model": {"x": 1}})) == 1


def test_every_format_parses_to_the_same_passages() -> None:
    for extra in ({"return_scores": True}, {"return_scores": False}, {"topk_rerank": 2, "return_scores": True}):
        (items,) = result(served(), {"queries": ["q"], "topk": 2, **extra})
        assert [hit.passage.contents for hit in parse_hits(items)] == [each.contents for each in PASSAGES[:2]]


RERANKED: dict[str, tuple[dict[str, Any], int, int]] = {
    "both": ({"topk_retrieval": 5, "topk_rerank": 2}, 5, 2),
    "ten candidates": ({"topk_rerank": 2}, 10, 2),
    "as many as the server gives": ({"topk_retrieval": 4}, 4, 3),
    "zeros": ({"topk_retrieval": 0, "topk_rerank": 0}, 10, 3),
    "fewer candidates than hits": ({"topk_retrieval": 1, "topk_rerank": 2}, 2, 2),
}


@pytest.mark.parametrize(("fields", "candidates", "hits"), RERANKED.values(), ids=RERANKED)
def test_rerank_variant_returns_strings(fields: dict[str, Any], candidates: int, hits: int) -> None:
    shelf = Shelf()
    app = served(shelf)
    texts = [each.contents for each in PASSAGES[:hits]]
    assert result(app, {"queries": ["q"], **fields}) == [texts]
    (items,) = result(app, {"queries": ["q"], **fields, "return_scores": True})
    assert items == [{"document": text, "score": 8 / 2**place} for place, text in enumerate(texts)]
    assert shelf.depths == [candidates] * 2


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "cut short": (b'{"queries": ["a"', "not valid JSON"),
    "no JSON": (b"queries=a", "not valid JSON"),
    "no text": (b"\xff\xfe", "not valid JSON"),
    "too deep": (b"[" * 100_000, "not valid JSON"),
    "too deep, with an escape": (rb'{"queries": ["\u0041"], "x": ' + b"[" * 100_000, "not valid JSON"),
    "half an escape": (rb'{"queries": ["\ud8"]}', "not valid JSON"),
    "a list": (b"[]", "object"),
    "null": (b"null", "object"),
    "no queries": (b"{}", "queries is missing"),
    "null queries": (b'{"queries": null}', "queries"),
    "a string": (b'{"queries": "who?"}', "queries: input should be a valid array, got 'who?'"),
    "a number": (b'{"queries": ["a", 7]}', "queries.1: input should be a valid string, got 7"),
    "a million numbers": (b'{"queries": [' + b"7," * 10**6 + b"7]}", "queries.0"),
    "negative topk": (b'{"queries": [], "topk": -1}', "topk"),
    "topk in words": (b'{"queries": [], "topk": "three"}', "topk"),
    "half a topk": (b'{"queries": [], "topk": 1.5}', "topk"),
    "endless topk": (b'{"queries": [], "topk": 1e999}', "topk"),
    "long topk": (b'{"queries": [], "topk": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "scores": (b'{"queries": [], "return_scores": "often"}', "return_scores"),
}


@pytest.mark.parametrize(("body", "word"), WRONG.values(), ids=WRONG)
def test_invalid_body_is_a_422_with_the_reason(body: bytes, word: str) -> None:
    sentence = refusal(served(), 422, content=body)
    assert word in sentence
    assert sentence.endswith('expected {"queries": ["..."], "topk": 3, "return_scores": true}')
    assert len(sentence) < 300


LIMITS = Limits(queries=10, characters=100, topk=20, hits=50, urls=10, body=5000)
TOO_MUCH: dict[str, tuple[dict[str, Any], str]] = {
    "queries": ({"queries": ["q"] * 11}, "queries has 11 entries"),
    "characters": ({"queries": ["a", "q" * 101]}, "queries.1 has 101 characters"),
    "topk": ({"queries": ["q"], "topk": 21}, "topk is 21"),
    "topk of a billion": ({"queries": ["q"], "topk": 10**9}, "topk is 1000000000, above the limit of 20"),
    "topk beyond all numbers": ({"queries": ["q"], "topk": 10**4000}, "topk is huge"),
    "topk_retrieval": ({"queries": ["q"], "topk_retrieval": 21}, "topk_retrieval is 21"),
    "topk_rerank": ({"queries": ["q"], "topk_rerank": 21}, "is 21"),
    "hits": ({"queries": ["q"] * 6, "topk": 10}, "6 queries with 10 hits each"),
}


@pytest.mark.parametrize(("body", "words"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_requests_above_the_limits_are_refused(body: dict[str, Any], words: str) -> None:
    shelf = Shelf()
    assert words in refusal(served(shelf, limits=LIMITS), 422, json=body)
    assert shelf.asked == []


def test_requests_at_the_limits_are_served() -> None:
    app = served(limits=LIMITS)
    assert len(result(app, {"queries": ["q" * 100] * 10, "topk": 5})) == 10
    assert len(result(app, {"queries": ["q"], "topk": 20})[0]) == 20


def test_query_of_ten_megabytes_is_refused_and_one_of_ten_thousand_characters_is_not() -> None:
    assert "10,000,000 characters" in refusal(served(), 422, json={"queries": ["x" * 10_000_000]})
    assert len(result(served(), {"queries": ["x" * 10_000]})) == 1


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * 1000


def test_large_body_is_refused_with_and_without_content_length() -> None:
    app = served(limits=LIMITS)
    assert "5,000 bytes" in refusal(app, 413, content=b" " * 5001)
    assert "5,000 bytes" in refusal(app, 413, content=pieces(6))
    assert "not valid JSON" in refusal(app, 422, content=pieces(5))


def test_body_too_large_is_not_read_to_its_end() -> None:
    read = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(1)
            yield b" " * 1000

    refusal(served(limits=LIMITS), 413, content=endless())
    assert len(read) == 6


def test_slow_body_is_refused() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert "0.05 s" in refusal(served(limits=Limits(body_seconds=0.05)), 408, content=stuck())


def test_failed_query_is_a_503_with_the_cause() -> None:
    assert refusal(served(), 503, json={"queries": ["q", "broken", "q"]}) == (
        "1 of 3 queries failed: the index is being moved"
    )


def test_full_queue_is_a_503_with_retry_after() -> None:
    async def run() -> httpx.Response:
        shelf = Shelf()
        shelf.open.clear()
        transport = httpx.ASGITransport(served(shelf, limits=Limits(waiting=2)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            before = []
            for _ in range(2):
                before.append(asyncio.create_task(client.post("/retrieve", json={"queries": ["a", "b"]})))
                await shelf.begun.wait()
            await asyncio.sleep(0.01)
            refused = await client.post("/retrieve", json={"queries": ["c"]})
            shelf.open.set()
            assert {each.status_code for each in await asyncio.gather(*before)} == {200}
            return refused

    refused = asyncio.run(run())
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert "2 queries are queued" in refused.json()["detail"]


def test_small_requests_are_served_during_a_large_one() -> None:
    """Clients that do not know 429 see none, also where more queries wait than a batch has room for."""

    async def run() -> list[int]:
        shelf = Shelf()
        shelf.open.clear()
        transport = httpx.ASGITransport(served(shelf))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sizes = [1, 10_000, *[512] * 4, *[1] * 4]
            bodies = [{"queries": [f"{place} {number}" for number in range(size)]} for place, size in enumerate(sizes)]
            answers = [asyncio.create_task(client.post("/retrieve", json=bodies[0]))]
            await shelf.begun.wait()
            answers += [asyncio.create_task(client.post("/retrieve", json=body)) for body in bodies[1:]]
            async with asyncio.timeout(60):
                while "sleuth_queued_queries 12052" not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0)
                    if any(answer.done() for answer in answers):  # refused: none is answered before the shelf is open
                        break
            shelf.open.set()
            await asyncio.gather(*answers)
            return [answer.result().status_code for answer in answers]

    assert asyncio.run(run()) == [200] * 10


def test_lone_surrogates_are_accepted() -> None:
    shelf = Shelf([Passage("\ud800", "half \udfff", {"x": math.nan})])
    answer = asked(served(shelf), "POST", "/retrieve", content=rb'{"queries": ["who \ud83d wrote?", "\ud83d\ude00"]}')
    assert answer.json()["result"] == [[{"id": "\ud800", "contents": "half \udfff", "x": None}]] * 2
    assert sorted(shelf.asked) == ["who ? wrote?", "😀"]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_become_null(score: float) -> None:
    shelf = Shelf([Passage("1", "text", {"deep": [{"x": score}]})], score)
    answer = asked(served(shelf), "POST", "/retrieve", json={"queries": ["q"], "return_scores": True})

    def forbidden(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(answer.content, parse_constant=forbidden)
    assert found == {"result": [[{"document": {"id": "1", "contents": "text", "deep": [{"x": None}]}, "score": None}]]}


def test_large_response_is_encoded_in_steps() -> None:
    async def run() -> int:
        turns, done = 0, False

        async def others() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.create_task(others())
        hits = [Hit(passage, 1.0) for passage in PASSAGES]
        body = await encode_results([hits] * 1000, scored_row)
        done = True
        await watching
        assert json.loads(body) == {"result": [[scored_row(hit) for hit in hits]] * 1000}
        return turns

    assert asyncio.run(run()) >= 30


def test_token_protects_all_paths_but_healthz() -> None:
    app = served(token="secret")
    assert asked(app, "GET", "/healthz").json() == {"status": "ok"}
    for method, path in (
        ("POST", "/retrieve"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
    ):
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = asked(app, method, path, headers=header)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert list(answer.json()) == ["detail"]
    allowed = {"Authorization": "bearer secret"}
    assert asked(app, "GET", "/readyz", headers=allowed).status_code == 200
    assert asked(app, "POST", "/retrieve", headers=allowed, json={"queries": ["q"]}).status_code == 200


def test_pages_by_url() -> None:
    answer = asked(served(pages=Pages()), "POST", "/access", json={"urls": ["b", "x", "a", "b"]})
    page = {"contents": "text"}
    assert answer.json() == {"result": [page | {"url": "b"}, None, page | {"url": "a"}, page | {"url": "b"}]}


@pytest.mark.parametrize(
    ("options", "status"),
    [({"json": {"urls": "a"}}, 422), ({"content": b"{"}, 422), ({"json": {"urls": ["a"] * 11}}, 422)],
)
def test_invalid_page_requests_are_refused(options: dict[str, Any], status: int) -> None:
    answer = asked(served(pages=Pages(), limits=LIMITS), "POST", "/access", **options)
    assert answer.status_code == status
    assert "urls" in answer.json()["detail"]


def test_server_without_pages() -> None:
    answer = asked(served(), "POST", "/access", json={"urls": ["a"]})
    assert answer.status_code == 404
    assert "--pages" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/retrieve", 405, "POST"),
        ("PUT", "/retrieve", 405, "POST"),
        ("POST", "/readyz", 405, "GET"),
        ("GET", "/nowhere", 404, "/nowhere"),
    ],
)
def test_wrong_method_or_path(method: str, path: str, status: int, word: str) -> None:
    answer = asked(served(), method, path)
    assert answer.status_code == status
    assert word in answer.json()["detail"]
    assert status != 405 or answer.headers["allow"] == word


def test_readyz_names_the_index() -> None:
    ready = asked(served(), "GET", "/readyz").json()
    assert (ready["status"], ready["index"], ready["kind"], ready["passages"]) == ("ready", "wiki", "bm25", 4)
    assert ready["version"]
    assert "shards" not in ready


@pytest.mark.parametrize("ready", [1, 0])
def test_readyz_counts_the_replicas_of_a_cluster(ready: int) -> None:
    async def shard_status() -> list[ShardStatus]:
        return [ShardStatus(replicas=2, ready=2), ShardStatus(replicas=2, ready=ready)]

    answer = asked(served(shard_status=shard_status), "GET", "/readyz")
    if ready:
        assert answer.json()["shards"] == [{"replicas": 2, "ready": 2}, {"replicas": 2, "ready": 1}]
    else:
        assert answer.status_code == 503
        assert "shard 2 of 2" in answer.json()["detail"]


def manual(app: FastAPI, **options: Any) -> str:
    answer = asked(app, "GET", "/docs", **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def test_docs_page_lists_every_path_field_status_and_limit() -> None:
    app = served(k=5, limits=LIMITS)
    page, paths = html.unescape(manual(app)), app.openapi()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            (part,) = re.findall(f"<h2>{method.upper()} {path}</h2>(.*?)</section>", page, re.DOTALL)
            assert re.findall(r'<th scope="row">(\d{3})</th>', part) == list(operation["responses"])
    for field in (*RetrieveRequest.model_fields, *AccessRequest.model_fields):
        assert f'<th scope="row"><code>{field}</code></th>' in page
    for example in (*ANSWERS.values(), PAGE):
        assert f"<pre>{json.dumps(example)}</pre>" in page
    assert "<td>integer (at least 0, at most 20) or null</td><td" in page
    assert '<td class="figure">5</td>' in page
    assert "bytes of a body</th><td><code>5,000</code>" in page
    assert "misspelled field" in page


def test_every_command_of_the_docs_page_works() -> None:
    app = served(pages=Pages())
    commands = [shlex.split(html.unescape(each)) for each in re.findall("<pre>(curl .*?)</pre>", manual(app))]
    assert len(commands) == 7
    for _, address, *options in commands:
        url = httpx.URL(address)
        assert (url.scheme, url.host) == ("http", "localhost")
        body = options[options.index("-d") + 1] if options else None
        assert asked(app, "POST" if body else "GET", url.path, content=body).status_code == 200


def test_docs_page_has_no_scripts_or_external_resources() -> None:
    answer = asked(served(), "GET", "/docs")
    assert re.findall(r"<(?:script|link|img|iframe|object|form)|(?:src|action)=", answer.text) == []
    assert re.findall('href="([^#].*?)"', answer.text) == ["openapi.json"]
    style = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in policy
    assert [asked(served(), "GET", path).status_code for path in ("/redoc", "/openapi.json")] == [404, 200]


def test_docs_page_uses_the_requested_address() -> None:
    command = "curl 'http://a'\"'\"';b&c/healthz'"
    assert f"<pre>{html.escape(command)}</pre>" in manual(served(names=["a';b&c"]), headers={"Host": "a';b&c"})
    for host in ("<script>", "["):
        assert "<script>" not in manual(served(names=[host]), headers={"Host": host})


def test_docs_page_escapes_html() -> None:
    named = {"title": "<b>", "version": "&", "description": "`<i>` <u>"}
    page = DocsPage(LIMITS, needs_token=False).render({"info": named, "paths": {}}, "http://server")
    assert "<h1>&lt;b&gt; &amp;</h1>" in page
    assert not re.search("<[biu]>", page)


def test_docs_commands_include_the_token_where_required() -> None:
    page = html.unescape(manual(served(token="secret"), headers={"Authorization": "Bearer secret"}))
    commands = re.findall("<pre>(curl .*?)</pre>", page)
    assert [command for command in commands if "Bearer $TOKEN" not in command] == ["curl http://localhost/healthz"]
    assert "secret" not in page


def test_metrics() -> None:
    app = served()
    for _ in range(3):
        result(app, {"queries": ["q", "r"], "topk": 1})
    refusal(app, 503, json={"queries": ["broken", "q"]})
    asked(app, "GET", "/nowhere/at/all")
    page = asked(app, "GET", "/metrics")
    figures = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#"))
    assert page.headers["content-type"].startswith("text/plain")
    assert float(figures['sleuth_requests_total{path="/retrieve",status="200"}']) == 3
    assert float(figures['sleuth_requests_total{path="/retrieve",status="503"}']) == 1
    assert float(figures['sleuth_requests_total{path="other",status="404"}']) == 1
    assert float(figures["sleuth_queries_total"]) == 8
    assert float(figures["sleuth_unavailable_total"]) == 1
    assert float(figures["sleuth_batch_queries_sum"]) == 8
    assert float(figures["sleuth_batch_queries_count"]) == 4
    assert float(figures['sleuth_request_seconds_count{path="/retrieve"}']) == 4
    assert float(figures["sleuth_queued_queries"]) == 0


def test_metrics_of_two_servers_are_separate() -> None:
    first, second = served(), served()
    result(first, {"queries": ["q"]})
    assert "sleuth_queries_total 0.0" in asked(second, "GET", "/metrics").text


def test_pages_that_changed_under_the_server_are_a_503() -> None:
    class Changed:
        def get(self, url: str) -> Row | None:
            raise InputError("the pages changed while in use; start again")

    answer = asked(served(pages=Changed()), "POST", "/access", json={"urls": ["a"]})
    assert (answer.status_code, answer.json()) == (503, {"detail": "the pages changed while in use; start again"})


def test_cache_answers_repeated_queries() -> None:
    shelf = Shelf()
    app = served(shelf, cache=2)
    for queries in (["a", "b"], ["b", "a"], ["a"]):
        assert len(result(app, {"queries": queries})) == len(queries)
    assert shelf.asked == ["a", "b"]
    assert "sleuth_cached_queries 3.0" in asked(app, "GET", "/metrics").text


def test_internal_error_is_a_500() -> None:
    class Odd:
        def get(self, url: str) -> Row | None:
            raise KeyError(url)

    answer = asked(served(pages=Odd()), "POST", "/access", json={"urls": ["a"]})
    assert answer.status_code == 500
    assert "KeyError" in answer.json()["detail"]


async def leaving(app: FastAPI, queries: list[str], leaves: asyncio.Event) -> list[dict[str, Any]]:
    """What the application sends to a client that goes away when `leaves` is set."""
    body = json.dumps({"queries": queries}).encode()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/retrieve", "headers": HEADERS, "query_string": b""}
    await app(scope, receive, send)
    return sent


def test_queries_of_a_disconnected_client_are_not_searched() -> None:
    async def run() -> Shelf:
        shelf, leaves, stays = Shelf(), asyncio.Event(), asyncio.Event()
        shelf.open.clear()
        app = served(shelf)
        running = asyncio.create_task(leaving(app, ["running"], stays))
        await shelf.begun.wait()
        gone = asyncio.create_task(leaving(app, ["gone"], leaves))
        await asyncio.sleep(0.01)
        leaves.set()
        assert [message.get("status") for message in await gone] == [499, None]
        shelf.open.set()
        assert [message.get("status") for message in await running] == [200, None]
        return shelf

    assert asyncio.run(run()).asked == ["running"]


def test_disconnect_while_sending_the_body() -> None:
    async def run() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/retrieve", "headers": HEADERS, "query_string": b""}
        await served()(scope, receive, send)
        return sent

    assert asyncio.run(run())[0]["status"] == 499


def test_page_of_another_site_cannot_read_the_corpus() -> None:
    """By a name that it made resolve here, by a form of another origin, or by a body that needs no permission."""
    shelf, body = Shelf(), {"queries": ["secret"]}
    app = served(shelf)
    rebound = asked(app, "POST", "/retrieve", json=body, headers={"host": "evil.example:8000"})
    assert (rebound.status_code, "secret" in shelf.asked, "--allow-host" in rebound.text) == (421, False, True)
    assert asked(app, "POST", "/retrieve", json=body, headers={"origin": "http://evil.example"}).status_code == 403
    plain = asked(app, "POST", "/retrieve", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert asked(app, "GET", path, headers={"host": "evil.example"}).status_code == 421
    named = served(names=["search.lan"])
    assert asked(named, "POST", "/retrieve", json=body, headers={"host": "search.lan:80"}).status_code == 200


def test_address_file_exists_while_serving(tmp_path: Path) -> None:
    folder = tmp_path / "addresses"
    with advertise(folder, "127.0.0.1", 8000) as path:
        assert [each.name for each in folder.iterdir()] == ["Host127.0.0.1_IP8000.txt"]
        assert path.read_text() == "127.0.0.1:8000"
    assert list(folder.iterdir()) == []


def test_address_file_is_removed_after_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyError), advertise(tmp_path, "localhost", 1):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with advertise(tmp_path, "localhost", 1) as path:
        path.unlink()


def test_stale_address_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "Host127.0.0.1_IP8000.txt").write_text("of a server that was killed")
    with advertise(tmp_path, "127.0.0.1", 8000) as path:
        assert path.read_text() == "127.0.0.1:8000"


def test_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"Host127.0.0.1_IP1.txt"),
        advertise(tmp_path / "file" / "addresses", "127.0.0.1", 1),
    ):
        raise AssertionError
