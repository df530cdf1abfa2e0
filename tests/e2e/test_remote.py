"""A model behind an address as a user asks it: evaluated, killed and continued, asked, and refused in one line."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Nursery = Any
KILLED = -9
QUESTIONS = 20
# It finds something for everyone, and while there is a file called `die`, the tenth search kills the process.
SHELF = """
import os, signal
from itertools import count

searches = count(1)

def search(queries, k):
    if os.path.exists("die") and next(searches) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return [[{"id": "1", "contents": '"Town"\\nIt is Oslo.'}] for _ in queries]
"""


class Model(BaseHTTPRequestHandler):
    """Searches once and answers Oslo, as servers do: without the stop; busy at every fifth request."""

    heard: list[dict[str, Any]] = []  # noqa: RUF012  one server at a time

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "wise"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Model.heard.append(body)
        if len(Model.heard) % 5 == 0:
            return self._send(503, {"error": "busy"})
        words = "<think> a </think><answer> Oslo" if len(body["messages"]) > 1 else "<think> b </think><search> town"
        choice = {"message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
        return self._send(200, {"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 9}})

    def _send(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the library gives it
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    (folder / "shelf.py").write_text(SHELF)
    rows = ({"id": str(n), "question": f"Where is {n}?", "golden_answers": ["Oslo"]} for n in range(QUESTIONS))
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_killed_and_continued_every_question_is_answered_once(home: Path, url: str, nursery: Nursery) -> None:
    words = ["evaluate", url, "--model", "wise", "--suite", "asked.jsonl", "--index", "import:shelf.search"]
    words += ["--set", "engine.slots=2", "--out", "found"]
    (home / "die").touch()
    assert nursery.sleuth(home, *words).returncode == KILLED
    (home / "die").unlink()
    there = len((home / "found" / "trajectories.jsonl").read_bytes().splitlines())
    assert 0 < there < QUESTIONS
    ended = nursery.sleuth(home, *words)
    assert ended.returncode == 0, ended.stderr
    assert f"{there} of {QUESTIONS} questions" in ended.stderr
    found = json.loads((home / "found" / "results.json").read_text())
    assert (found["questions"], found["unusable"], found["em"]["value"]) == (QUESTIONS, 0, 1.0)
    assert (found["searches"]["value"], found["tokens"]["value"]) == (1.0, 18.0)
    rows = (home / "found" / "trajectories.jsonl").read_text().splitlines()
    assert sorted(json.loads(row)["group"] for row in rows) == list(range(QUESTIONS))


def test_asked(home: Path, url: str, nursery: Nursery) -> None:
    ended = nursery.sleuth(home, "ask", url, "--model", "wise", "Where is it?", "--index", "import:shelf.search")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("Answer: Oslo (1 search)\n")


def test_refused_in_one_line(home: Path, url: str, nursery: Nursery) -> None:
    unknown = nursery.sleuth(
        home, "evaluate", url, "--model", "unwise", "--suite", "asked.jsonl", "--method", "direct", "--out", "never"
    )
    trained = nursery.sleuth(home, "train", "quickstart", "--set", f"model.policy={url}", "--out", "never")
    for ended in (unknown, trained):
        assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "'unwise'" in unknown.stderr
    assert "--model" in unknown.stderr
    assert trained.stderr.startswith("sleuth: ")
    assert not (home / "never").exists()
