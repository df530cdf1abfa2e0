"""The judge, against a server on this machine: yes, no, nonsense, slowness and errors."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.judge import Judge, judged, read, remembered, unjudged
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
        if body["model"] == "missing":
            content = json.dumps({"error": "no model is called missing"})
        refused = 403 if "forbidden" in text else 404 if body["model"] == "missing" else 200
        broken = "broken once" not in text if "broken" in text else False
        first = "broken once" in text and sum("broken once" in str(body) for _, _, body in Bench.heard) == 1
        self.send_response(500 if broken or first else refused)
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
    done = asked(where, found, Judge(url, "wise", timeout=0.2, deadline=0.3))
    assert verdicts(done) == [1.0, None]
    assert unjudged(done) == 1
    assert verdicts(remembered(where, found)) == [1.0, None]


def test_a_passing_fault_is_tried_again(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), ("broken once?", "Oslo"))
    assert verdicts(asked(folder(tmp_path, found), found, Judge(url, "wise"))) == [1.0, 1.0]
    assert len(Bench.heard) == 3


def test_no_verdict_is_asked_for_twice_but_by_another_judge(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), ("nonsense?", "Oslo"))
    where = folder(tmp_path, found)
    asked(where, found, Judge(url, "wise"))
    assert verdicts(asked(where, found, Judge(url, "wise"))) == [1.0, None]
    assert len(Bench.heard) == 3
    asked(where, found, Judge(url, "wiser"))
    assert len(Bench.heard) == 5


def test_nobody_there(tmp_path: Path) -> None:
    found = marks(*[("Where?", "Oslo")] * 50)
    with pytest.raises(InputError, match=r"gave no verdict: it does not answer .*; check --judge"):
        asked(folder(tmp_path, found), found, Judge("http://127.0.0.1:9/v1", "wise", deadline=0.2))


def test_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="--judge localhost is no address"):
        Judge("localhost", "wise")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("Yes.", 1.0),
        ("no", 0.0),
        ("**No**", 0.0),
        ("Yes, it is the same city.", 1.0),
        ("The answer is no.", 0.0),
        ("<think>There is no doubt.</think>\n\nYes", 1.0),
        ("There is no doubt.</think>yes", 1.0),
        ("<think>The answer is no doubt the same, so yes", None),
        ("No doubt the same.", None),
        ("No doubt the same, so yes.", None),
        ("I cannot say yes or no", None),
        ("I know none", None),
        ("", None),
    ],
)
def test_a_reply_is_read_strictly(said: str, verdict: float | None) -> None:
    assert read(said) == verdict


def test_there_is_room_for_a_thought(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"))
    asked(folder(tmp_path, found), found, Judge(url, "wise"))
    assert Bench.heard[0][2]["max_tokens"] >= 256


def test_a_verdict_half_written_is_cut_off_and_asked_for_again(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), ("Where?", "Rome"))
    where = folder(tmp_path, found)
    asked(where, found, Judge(url, "wise"))
    file = where.path / "judge.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    for requests in (3, 3):
        assert verdicts(asked(where, found, Judge(url, "wise"))) == [1.0, 0.0]
        assert len(Bench.heard) == requests
    assert verdicts(remembered(where, found)) == [1.0, 0.0]


@pytest.mark.parametrize("line", ["{half", '{"group": 0}', '{"group": "0", "verdict": 1.0}', "[]"])
def test_a_broken_verdict_is_one_sentence(tmp_path: Path, url: str, line: str) -> None:
    found = marks(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    (where.path / "judge.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"judge.jsonl, line 1 .*"):
        asked(where, found, Judge(url, "wise"))


def test_another_address_is_another_judge(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    asked(where, found, Judge(url, "wise"))
    asked(where, found, Judge(f"{url}/chat/completions", "wise"))
    assert len(Bench.heard) == 1
    other = url.replace("127.0.0.1", "localhost")
    asked(where, found, Judge(other, "wise"))
    assert len(Bench.heard) == 2
    # another prompt too
    file = where.path / "judge.jsonl"
    file.write_text(file.read_text().replace('"prompt": "', '"prompt": "0'))
    asked(where, found, Judge(url, "wise"))
    assert len(Bench.heard) == 3


def test_what_another_judge_said_is_not_kept_where_this_one_is_silent(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), ("nonsense?", "Oslo"))
    earlier = [replace(mark, values={"em": 0.0, "judge": 0.0}) for mark in found]
    assert verdicts(asked(folder(tmp_path, found), earlier, Judge(url, "wise"))) == [1.0, None]


def test_a_judge_that_says_nothing_has_no_figure(tmp_path: Path, url: str) -> None:
    found = marks(("nonsense?", "Oslo"), ("Where?", None))
    assert verdicts(asked(folder(tmp_path, found), found, Judge(url, "wise"))) == [None, None]


def test_a_judge_that_refuses_everyone_is_asked_once(tmp_path: Path, url: str) -> None:
    found = marks(*[("Where?", "Oslo")] * 50)
    with pytest.raises(InputError, match=r"refuses with HTTP 404 .*no model is called missing.*--judge-model missing"):
        asked(folder(tmp_path, found), found, Judge(url, "missing"))
    assert len(Bench.heard) == 1


def test_a_judge_that_refuses_from_some_time_on_is_left_alone(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"), *[("forbidden?", "Oslo")] * 200)
    where = folder(tmp_path, found)
    with pytest.raises(InputError, match="HTTP 403"):
        asked(where, found, Judge(url, "wise"))
    assert len(Bench.heard) < 100
    assert len((where.path / "judge.jsonl").read_text().splitlines()) == 1


def test_credentials_of_the_judge_are_in_no_file(tmp_path: Path, url: str) -> None:
    found = marks(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    judge = Judge(url.replace("://", "://user:hunter2@"), "wise")
    assert verdicts(asked(where, found, judge)) == [1.0]
    assert [file.name for file in where.path.iterdir() if "hunter2" in file.read_text()] == []
    # A verdict that an older version wrote beside the whole address is not asked for again.
    rows = where.path / "judge.jsonl"
    rows.write_text(rows.read_text().replace("***@", "user:hunter2@"))
    assert verdicts(asked(where, found, judge)) == [1.0]
    assert len(Bench.heard) == 1


@pytest.mark.parametrize("about", ["{}", '{"url": "http://x/v1"}', '{"url": 1, "model": "wise"}'])
def test_a_judge_that_is_not_named_is_one_sentence(tmp_path: Path, about: str) -> None:
    found = marks(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    (where.path / "judge.json").write_text(about)
    with pytest.raises(InputError, match=r"judge.json has no url and model"):
        remembered(where, found)
