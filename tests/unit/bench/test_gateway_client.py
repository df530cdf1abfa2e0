"""The scripted client: what it sends, and that a refused call fails its attempt."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.bench.gateway_client import SCRIPT_ENV, SECONDS, search_agent
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question

ASKED = {"role": "user", "content": "Who?"}
TASK = Task(Question("q1", "Who?", ("Ada",), "world", prompt=(ASKED,)))


class Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received: list[tuple[str, str, Any, Any]]
    status: int

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append((self.path, self.headers["Authorization"], body, self.client_address))
        message = {"role": "assistant", "content": f"reply {len(self.received)}"}
        reply = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """No-op: the test prints nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Recorder], Endpoint]]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"searches": 1, "observations": ["seen"]}))
    monkeypatch.setenv(SCRIPT_ENV, str(script))
    recorder = type("OwnRecorder", (Recorder,), {"received": [], "status": 200})
    with HTTPServer(("127.0.0.1", 0), recorder) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        yield recorder, Endpoint(f"http://127.0.0.1:{listening.server_port}/rollout/a/v1", "key")
        listening.shutdown()
        thread.join()


def test_the_conversation_grows_over_one_connection(server: tuple[type[Recorder], Endpoint]) -> None:
    recorder, endpoint = server
    score = search_agent(TASK, endpoint)
    assert score.parts[SECONDS] > 0
    (first, second) = recorder.received
    assert first[:2] == ("/rollout/a/v1/chat/completions", "Bearer key")
    assert first[2] == {"model": "policy", "messages": [ASKED]}
    reply, observation = {"role": "assistant", "content": "reply 1"}, {"role": "user", "content": "seen"}
    assert second[2]["messages"] == [ASKED, reply, observation]
    assert first[3] == second[3]


def test_a_refused_call_fails_the_attempt(server: tuple[type[Recorder], Endpoint]) -> None:
    recorder, endpoint = server
    recorder.status = 410
    with pytest.raises(RuntimeError, match="status 410"):
        search_agent(TASK, endpoint)
