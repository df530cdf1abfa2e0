"""What servers say of the index behind them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server
from threading import Thread
from time import sleep

import pytest

from sleuth.config.retrieval import ServiceConfig
from sleuth.errors import InputError
from sleuth.retrieval.backends import require_ready
from sleuth.retrieval.service.client import served_index

READY = {"status": "ready", "index": "/somewhere/wiki18", "kind": "bm25", "passages": 7, "version": "1"}
DEAD = "http://127.0.0.1:1"


@contextmanager
def saying(status: int, body: str, searched: int = 501) -> Iterator[str]:
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
def test_a_server_names_its_index(path: str) -> None:
    with saying(200, json.dumps(READY)) as url:
        assert served_index(url + path, token="t", patience=9) == {"name": "wiki18", "kind": "bm25", "passages": 7}
        assert served_index(url + path, patience=9) is None


@pytest.mark.parametrize(("status", "body"), [(404, "{}"), (200, "ready"), (200, '{"index": 3}')])
def test_one_that_does_not_tell_is_only_an_address(status: int, body: str) -> None:
    with saying(status, body) as url:
        assert served_index(url, token="t", patience=9) is None


def test_one_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"the search server http://127.0.0.1:1 does not answer .*; start it"):
        served_index(DEAD, patience=0.2)


@pytest.mark.parametrize(
    ("status", "body", "searched"), [(200, json.dumps(READY), 501), (404, "{}", 200), (200, "welcome", 200)]
)
def test_a_server_is_ready_that_says_so_or_answers_a_search(
    status: int, body: str, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t")
    with saying(status, body, searched) as url:
        require_ready(url, ServiceConfig(token_env="TOKEN"))


def test_a_server_that_answers_no_search_is_not_ready() -> None:
    with saying(404, "{}", 404) as url, pytest.raises(InputError, match=rf"{url} does not answer \(status 404"):
        require_ready(url)


def test_whatever_is_no_server_is_not_asked() -> None:
    for name in (None, "index", "web:serper", "import:a.b"):
        require_ready(name)


def test_a_server_that_is_just_starting_is_waited_for() -> None:
    with saying(200, json.dumps(READY)) as url:
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
