"""What servers say of the index behind them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from sleuth.errors import InputError
from sleuth.retrieval.service.identity import served

READY = {"status": "ready", "index": "/somewhere/wiki18", "kind": "bm25", "passages": 7, "version": "1"}
DEAD = "http://127.0.0.1:1"


@contextmanager
def saying(status: int, body: str) -> Iterator[str]:
    class Desk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/readyz" and self.headers["authorization"] == "Bearer t"
            content = body.encode() if known else b"{}"
            self.send_response(status if known else 401)
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
        assert served(url + path, token="t") == {"name": "wiki18", "kind": "bm25", "passages": 7}
        assert served(url + path) is None


@pytest.mark.parametrize(("status", "body"), [(404, "{}"), (200, "ready"), (200, '{"index": 3}')])
def test_one_that_does_not_tell_is_only_an_address(status: int, body: str) -> None:
    with saying(status, body) as url:
        assert served(url, token="t") is None


def test_one_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"the search server http://127.0.0.1:1 does not answer .*; start it"):
        served(DEAD)
