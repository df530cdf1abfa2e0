"""The judge, against a server on this machine: yes, no, nonsense, slowness and errors."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from sleuth.errors import ConfigError
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.judge import Judge, judged, remembered, unjudged
from sleuth.evaluate.marks import Mark
from sleuth.records import Question

ABOUT: dict[str, Any] = {"title": "Test", "stamp": {}, "sample": None, "notes": []}


class Bench(BaseHTTPRequestHandler):
    """Says yes to Oslo and no to others; what it cannot answer is in the question."""

    heard: list[tuple[str, str | None, dict[str, Any]]] = []  # noqa: RUF012  one server at a time

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Bench.heard.append((self.path, self.headers.get("authorization"), body))
        text = body["messages"][0]["content"]
        if "slow" in text:
            sleep(0.4)
            return
        said = "I cannot tell." if "nonsense" in text else "Yes." if "Given answer: Oslo" in text else "no"
        content = json.dumps({"choices": [{"message": {"content": said}}]} if "shape" not in text else {"error": 1})
        self.send_response(500 if "broken" in text else 403 if "forbidden" in text else 200)
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the library gives it
        return


@pytest.fixture
def url() -> Iterator[str]:
    Bench.heard = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bench)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def marks(*asked: tuple[str, str | None]) -> list[Mark]:
    return [
        Mark(Question(str(number), text, ("Oslo", "Christiania"), "s"), answer, {"em": 0.0})
        for number, (text, answer) in enumerate(asked)
    ]


def folder(path: Path, found: list[Mark]) -> Folder:
    return Folder.begun(path / "e", ABOUT, [mark.question for mark in found])


def verdicts(found: list[Mark]) -> list[float | None]:
    return [(mark.values or {}).get("judge") for mark in found]


def asked(where: Folder, found: list[Mark], judge: Judge) -> list[Mark]:
    return asyncio.run(judged(where, found, judge, lambda: None))


def test_yes_and_no(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    found = marks(("Where?", "Oslo"), ("Where?", "Rome {golds}"), ("Where?", None), ("Where?", ""))
    done = asked(folder(tmp_path, found), found, Judge(url, "wise", "JUDGE_KEY"))
    assert verdicts(done) == [1.0, 0.0, 0.0, 0.0]
    assert len(Bench.heard) == 2
    path, key, body = Bench.heard[0]
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer secret", "wise", 0)
    assert any("Given answer: Rome {golds}" in body["messages"][0]["content"] for _, _, body in Bench.heard)
    assert "Accepted answers: Oslo; Christiania" in body["messages"][0]["content"]


@pytest.mark.parametrize("fault", ["nonsense", "shape", "broken", "forbidden", "slow"])
def test_failures_are_counted_and_never_scored(tmp_path: Path, url: str, fault: str) -> None:
    found = marks(("Where?", "Oslo"), (f"{fault}?", "Oslo"))
    where = folder(tmp_path, found)
    done = asked(where, found, Judge(url, "wise", timeout=0.2, attempts=1))
    assert verdicts(done) == [1.0, None]
    assert unjudged(done) == 1
    assert verdicts(remembered(where, found, "wise")) == [1.0, None]


def test_a_passing_fault_is_tried_again(tmp_path: Path, url: str) -> None:
    found = marks(("broken?", "Oslo"))
    asked(folder(tmp_path, found), found, Judge(url, "wise", attempts=2))
    assert len(Bench.heard) == 2


def test_no_verdict_is_asked_for_twice_but_by_another_judge(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), ("nonsense?", "Oslo"))
    where = folder(tmp_path, found)
    asked(where, found, Judge(url, "wise"))
    assert verdicts(asked(where, found, Judge(url, "wise"))) == [1.0, None]
    assert len(Bench.heard) == 3
    asked(where, found, Judge(url, "wiser"))
    assert len(Bench.heard) == 5


def test_nobody_there(tmp_path: Path) -> None:
    found = marks(("Where?", "Oslo"))
    done = asked(folder(tmp_path, found), found, Judge("http://127.0.0.1:9/v1", "wise", attempts=1))
    assert verdicts(done) == [None]


def test_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="--judge localhost is no address"):
        Judge("localhost", "wise")
