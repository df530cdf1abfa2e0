"""A loopback server with the parts of the Hub API that downloads use: file lists, redirects, ranges and failures."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import huggingface_hub.constants
import pytest


@dataclass
class FakeHub:
    """The files of the server, its behaviour, and the requests it received."""

    files: dict[str, bytes] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)  # wrong sizes to announce
    small: tuple[str, ...] = ()  # files without LFS, which have the digest of a git blob
    cuts: int = 0  # number of answers to break off
    after: int = 1000  # bytes to send before breaking off
    ranges: bool = True
    status: int = 200
    page: str | None = None  # answer to every request
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    address: str = ""

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        size = self.claimed.get(path, len(content))
        if path in self.small:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324
            return {"rfilename": path, "size": size, "blobId": blob}
        digest = hashlib.sha256(self.truth(path)).hexdigest()
        lfs = {"sha256": digest, "size": size, "pointerSize": 130}
        return {"rfilename": path, "size": size, "blobId": "0" * 40, "lfs": lfs}

    def truth(self, path: str) -> bytes:
        """Return the bytes of the announced digest, if the server sends others."""
        return self.files.get(f"true {path}", self.files[path])


class Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: FakeHub, *rest: Any) -> None:
        self.hub = hub
        super().__init__(*rest)

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if self.hub.page is not None:
            return self._send(200, self.hub.page.encode())
        if path.startswith("/api/"):
            return self._list()
        if "/resolve/main/" in path:
            self.hub.tokens.append(self.headers["authorization"])
            return self._send(302, b"", {"location": f"/cdn/{self.path.partition('/resolve/main/')[2]}"})
        return self._file(path.removeprefix("/cdn/"))

    def _list(self) -> None:
        if self.hub.status != 200:
            return self._send(self.hub.status, b"no")
        names = sorted(name for name in self.hub.files if not name.startswith("true "))
        info = {"id": "someone/some-data", "siblings": [self.hub.entry(name) for name in names]}
        return self._send(200, json.dumps(info).encode())

    def _file(self, name: str) -> None:
        wanted = self.headers["range"]
        self.hub.asked.append((name, wanted))
        content = self.hub.files[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.hub.ranges else 0
        cut = self.hub.after if self.hub.cuts else None
        self.hub.cuts = max(0, self.hub.cuts - 1)
        ranged = {"content-range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._send(206 if ranged else 200, content[start:], ranged, cut)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Start a hub on this machine and point huggingface_hub at it."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, hub))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 500)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)  # between retries
    monkeypatch.delenv("HF_TOKEN", raising=False)
    serving = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    serving.start()
    yield hub
    server.shutdown()
    server.server_close()
    serving.join()
