"""The judge against a local server: verdicts, unclear replies, timeouts and errors."""

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
from sleuth.evaluate.folder import EvaluationFolder
from sleuth.evaluate.judge import Judge, count_unjudged, judge_results, parse_verdict, with_saved_verdicts
from sleuth.evaluate.results import QuestionResult
from sleuth.records import Question

ABOUT: dict[str, Any] = {"title": "Test", "stamp": {}, "sample": None, "notes": []}


class JudgeServer(BaseHTTPRequestHandler):
    """Says yes to Oslo and no to other answers; the question can request faults."""

    requests: list[tuple[str, str | None, dict[str, Any]]] = []  # noqa: RUF012  one server at a time

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        JudgeServer.requests.append((self.path, self.headers.get("authorization"), body))
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
        first = "broken once" in text and sum("broken once" in str(body) for _, _, body in JudgeServer.requests) == 1
        self.send_response(500 if broken or first else refused)
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the library gives it
        return


@pytest.fixture
def url() -> Iterator[str]:
    JudgeServer.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), JudgeServer)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def results(*rows: tuple[str, str | None]) -> list[QuestionResult]:
    return [
        QuestionResult(Question(str(number), text, ("Oslo", "Christiania"), "s"), answer, {"em": 0.0})
        for number, (text, answer) in enumerate(rows)
    ]


def folder(path: Path, found: list[QuestionResult]) -> EvaluationFolder:
    return EvaluationFolder.create_or_resume(path / "e", ABOUT, [result.question for result in found])


def verdicts(found: list[QuestionResult]) -> list[float | None]:
    return [(result.values or {}).get("judge") for result in found]


def judged(where: EvaluationFolder, found: list[QuestionResult], judge: Judge) -> list[QuestionResult]:
    return asyncio.run(judge_results(where, found, judge, lambda: None))


def test_yes_and_no(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    found = results(("Where?", "Oslo"), ("Where?", "Rome {golds}"), ("Where?", None), ("Where?", ""))
    done = judged(folder(tmp_path, found), found, Judge(url, "wise", "JUDGE_KEY"))
    assert verdicts(done) == [1.0, 0.0, 0.0, 0.0]
    assert len(JudgeServer.requests) == 2
    path, key, body = JudgeServer.requests[0]
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer secret", "wise", 0)
    assert any("Given answer: Rome {golds}" in body["messages"][0]["content"] for _, _, body in JudgeServer.requests)
    assert "Accepted answers: Oslo; Christiania" in body["messages"][0]["content"]


@pytest.mark.parametrize("fault", ["nonsense", "shape", "broken", "forbidden", "slow"])
def test_failures_are_counted_and_never_scored(tmp_path: Path, url: str, fault: str) -> None:
    found = results(("Where?", "Oslo"), (f"{fault}?", "Oslo"))
    where = folder(tmp_path, found)
    done = judged(where, found, Judge(url, "wise", timeout=0.2, deadline=0.3))
    assert verdicts(done) == [1.0, None]
    assert count_unjudged(done) == 1
    assert verdicts(with_saved_verdicts(where, found)) == [1.0, None]


def test_transient_errors_are_retried(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"), ("broken once?", "Oslo"))
    assert verdicts(judged(folder(tmp_path, found), found, Judge(url, "wise"))) == [1.0, 1.0]
    assert len(JudgeServer.requests) == 3


def test_saved_verdicts_are_reused_by_the_same_judge_only(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"), ("nonsense?", "Oslo"))
    where = folder(tmp_path, found)
    judged(where, found, Judge(url, "wise"))
    assert verdicts(judged(where, found, Judge(url, "wise"))) == [1.0, None]
    assert len(JudgeServer.requests) == 3
    judged(where, found, Judge(url, "wiser"))
    assert len(JudgeServer.requests) == 5


def test_unreachable_judge_raises(tmp_path: Path) -> None:
    found = results(*[("Where?", "Oslo")] * 50)
    with pytest.raises(InputError, match=r"http://127.0.0.1:9/v1.*--judge"):
        judged(folder(tmp_path, found), found, Judge("http://127.0.0.1:9/v1", "wise", deadline=0.2))


def test_invalid_address_raises() -> None:
    with pytest.raises(ConfigError, match="--judge localhost"):
        Judge("localhost", "wise")


@pytest.mark.parametrize(
    ("reply", "verdict"),
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
def test_parse_verdict(reply: str, verdict: float | None) -> None:
    assert parse_verdict(reply) == verdict


def test_requests_allow_for_reasoning(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"))
    judged(folder(tmp_path, found), found, Judge(url, "wise"))
    assert JudgeServer.requests[0][2]["max_tokens"] >= 256


def test_an_incomplete_verdict_is_requested_again(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"), ("Where?", "Rome"))
    where = folder(tmp_path, found)
    judged(where, found, Judge(url, "wise"))
    file = where.path / "judge.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    for count in (3, 3):
        assert verdicts(judged(where, found, Judge(url, "wise"))) == [1.0, 0.0]
        assert len(JudgeServer.requests) == count
    assert verdicts(with_saved_verdicts(where, found)) == [1.0, 0.0]


@pytest.mark.parametrize("line", ["{half", '{"group": 0}', '{"group": "0", "verdict": 1.0}', "[]"])
def test_an_invalid_verdict_raises(tmp_path: Path, url: str, line: str) -> None:
    found = results(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    (where.path / "judge.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"judge.jsonl, line 1 .*"):
        judged(where, found, Judge(url, "wise"))


def test_another_address_is_another_judge(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    judged(where, found, Judge(url, "wise"))
    judged(where, found, Judge(f"{url}/chat/completions", "wise"))
    assert len(JudgeServer.requests) == 1
    other = url.replace("127.0.0.1", "localhost")
    judged(where, found, Judge(other, "wise"))
    assert len(JudgeServer.requests) == 2
    # another prompt too
    file = where.path / "judge.jsonl"
    file.write_text(file.read_text().replace('"prompt":"', '"prompt":"0'))
    judged(where, found, Judge(url, "wise"))
    assert len(JudgeServer.requests) == 3


def test_verdicts_of_another_judge_are_dropped(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"), ("nonsense?", "Oslo"))
    earlier = [replace(result, values={"em": 0.0, "judge": 0.0}) for result in found]
    assert verdicts(judged(folder(tmp_path, found), earlier, Judge(url, "wise"))) == [1.0, None]


def test_a_judge_without_verdicts_has_no_figure(tmp_path: Path, url: str) -> None:
    found = results(("nonsense?", "Oslo"), ("Where?", None))
    assert verdicts(judged(folder(tmp_path, found), found, Judge(url, "wise"))) == [None, None]


def test_a_judge_that_refuses_all_requests_gets_one(tmp_path: Path, url: str) -> None:
    found = results(*[("Where?", "Oslo")] * 50)
    with pytest.raises(InputError, match=r"404 .*no model is called missing.*--judge-model missing"):
        judged(folder(tmp_path, found), found, Judge(url, "missing"))
    assert len(JudgeServer.requests) == 1


def test_repeated_refusals_stop_the_judging(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"), *[("forbidden?", "Oslo")] * 200)
    where = folder(tmp_path, found)
    with pytest.raises(InputError, match="403"):
        judged(where, found, Judge(url, "wise"))
    assert len(JudgeServer.requests) < 100
    assert len((where.path / "judge.jsonl").read_text().splitlines()) == 1


def test_credentials_are_not_written(tmp_path: Path, url: str) -> None:
    found = results(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    judge = Judge(url.replace("://", "://user:hunter2@"), "wise")
    assert verdicts(judged(where, found, judge)) == [1.0]
    assert [file.name for file in where.path.iterdir() if "hunter2" in file.read_text()] == []
    # Earlier versions wrote the address with its credentials; their verdicts are still used.
    rows = where.path / "judge.jsonl"
    rows.write_text(rows.read_text().replace("***@", "user:hunter2@"))
    assert verdicts(judged(where, found, judge)) == [1.0]
    assert len(JudgeServer.requests) == 1


@pytest.mark.parametrize("about", ["{}", '{"url": "http://x/v1"}', '{"url": 1, "model": "wise"}'])
def test_a_judge_file_without_url_and_model_raises(tmp_path: Path, about: str) -> None:
    found = results(("Where?", "Oslo"))
    where = folder(tmp_path, found)
    (where.path / "judge.json").write_text(about)
    with pytest.raises(InputError, match=r"judge.json has no url and model"):
        with_saved_verdicts(where, found)
