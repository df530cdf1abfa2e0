"""Host, Origin and Content-Type checks of every server."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sleuth.http.middleware import RequestCheck, server_names


async def inside(_: Request) -> Response:
    return PlainTextResponse("inside")


APP = Starlette(routes=[Route("/", inside, methods=["GET", "POST"])])


def status(check: RequestCheck, method: str = "GET", **headers: str) -> int:
    async def ask() -> httpx.Response:
        transport: Any = httpx.ASGITransport(check)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, "/", headers=named, content=b"{}")

    return asyncio.run(ask()).status_code


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8090", True),
        ("127.0.0.1", True),
        ("localhost:8090", True),
        ("LOCALHOST", True),
        ("localhost.", True),
        ("[::1]:8090", True),
        ("192.168.1.5:80", True),
        ("box.lan:8090", True),
        ("evil.example", False),
        ("evil.example:8090", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("127.1", False),
        ("", False),
        (":8090", False),
    ],
)
def test_only_known_hosts_are_accepted(host: str, known: bool) -> None:
    async def inner(*_: object) -> None:
        raise AssertionError

    assert RequestCheck(inner, names=["Box.lan", ""]).accepts_host(host) is known


def test_any_host_is_accepted_behind_a_token() -> None:
    assert status(RequestCheck(APP, None), host="search.example") == 200
    assert status(RequestCheck(APP, ()), host="search.example") == 421


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=application/json", False),
        ("", False),
    ],
)
def test_body_must_be_json(kind: str, accepted: bool) -> None:
    headers = {"content_type": kind} if kind else {}
    assert status(RequestCheck(APP, ()), "POST", **headers) == (200 if accepted else 415)


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({"origin": "http://127.0.0.1:8000"}, True),
        ({"origin": "http://127.0.0.1:8001"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://tool.lan:6274"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, False),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, True),  # a link that was followed
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], accepted: bool) -> None:
    assert status(RequestCheck(APP, (), origins=["tool.lan"]), **headers) == (200 if accepted else 403)


def test_navigation_cannot_post() -> None:
    sent = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "content_type": "application/json"}
    assert status(RequestCheck(APP, ()), "POST", **sent) == 403


def test_machine_names_are_accepted_only_if_not_bound_to_loopback() -> None:
    assert server_names("127.0.0.1", ["box.lan"]) == ["127.0.0.1", "box.lan"]
    assert len(server_names("0.0.0.0", ["box.lan"])) == 4  # noqa: S104  nothing is bound
