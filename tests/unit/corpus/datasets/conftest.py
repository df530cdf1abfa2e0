"""A server that speaks as the hub does: lists in pages, answers that are elsewhere, ranges, and its bad days."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

PAGE = 2  # files in one page of a list


@dataclass
class Shelf:
    """What the server holds, how it behaves, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)  # sizes that are not those of the bytes
    small: tuple[str, ...] = ()  # files that git holds itself, with its own kind of digest
    cuts: int = 0  # answers yet that break off
    after: int = 1000  # bytes after which they do
    ranges: bool = True
    status: int = 200
    page: str | None = None  # an answer to everything
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    address: str = ""

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        size = self.claimed.get(path, len(content))
        if path in self.small:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324
            return {"type": "file", "path": path, "size": size, "oid": blob}
        digest = hashlib.sha256(self.truth(path)).hexdigest()
        return {"type": "file", "path": path, "size": size, "oid": "0" * 40, "lfs": {"oid": digest, "size": size}}

    def truth(self, path: str) -> bytes:
        """The bytes that the list stands for, where the server sends others."""
        return self.files.get(f"true {path}", self.files[path])


class Answering(BaseHTTPRequestHandler):
    def __init__(self, shelf: Shelf, *rest: Any) -> None:
        self.shelf = shelf
        super().__init__(*rest)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        path = unquote(path)
        if self.shelf.page is not None:
            return self._send(200, self.shelf.page.encode())
        if path.startswith("/api/"):
            return self._list(path, query)
        if "/resolve/main/" in path:
            self.shelf.tokens.append(self.headers["authorization"])
            return self._send(302, b"", {"location": f"/cdn/{self.path.partition('/resolve/main/')[2]}"})
        return self._file(path.removeprefix("/cdn/"))

    def _list(self, path: str, query: str) -> None:
        if self.shelf.status != 200:
            return self._send(self.shelf.status, b"no")
        names = sorted(name for name in self.shelf.files if not name.startswith("true "))
        start = int(query.rpartition("start=")[2]) if "start=" in query else 0
        entries = [self.shelf.entry(name) for name in names[start : start + PAGE]]
        further = {"link": f'<{self.shelf.address}{path}?recursive=true&start={start + PAGE}>; rel="next"'}
        folder = [{"type": "directory", "path": "folder"}]
        return self._send(200, json.dumps(folder + entries).encode(), further if start + PAGE < len(names) else {})

    def _file(self, name: str) -> None:
        wanted = self.headers["range"]
        self.shelf.asked.append((name, wanted))
        content = self.shelf.files[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.shelf.ranges else 0
        cut = self.shelf.after if self.shelf.cuts else None
        self.shelf.cuts = max(0, self.shelf.cuts - 1)
        self._send(206 if wanted and self.shelf.ranges else 200, content[start:], cut=cut)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing is said of requests."""


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A hub on this machine, to which the commands of a test turn."""
    shelf = Shelf()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answering, shelf))
    shelf.address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", shelf.address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    serving = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    serving.start()
    yield shelf
    server.shutdown()
    server.server_close()
    serving.join()
