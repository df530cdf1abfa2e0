"""The viewer as a process: what it says, how fast it is with 100,000 trajectories, and what it does not give away."""

import os
import re
import signal
import socket
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from sleuth.runs.run import Run

pytestmark = pytest.mark.e2e

COMMAND = "from sleuth.cli.main import main; main()"
STEPS, ROWS = 100, 1000
Process = subprocess.Popen[str]


@contextmanager
def viewing(*words: str, home: Path) -> Iterator[tuple[Process, str]]:
    """A viewer in a process of its own, and the address it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "view", *words, "--port", "0", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env=os.environ | {"XDG_CACHE_HOME": str(home / "cache")},
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        assert found, line + process.communicate()[1]
        yield process, found.group()
    finally:
        process.kill()
        process.communicate()


def get(address: str, path: str, **parameters: Any) -> dict[str, Any]:
    answer = httpx.get(f"{address}{path}", params=parameters, timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def question_of(step: int, place: int) -> int:
    return (step * ROWS + place) // 8 % 250


def write_many(run: Run) -> None:
    """Trajectories as a run writes them, put together from parts, since making each anew would take minutes."""
    numbers = ",".join(str(100 + place % 900) for place in range(400))
    logprobs = ",".join("-0.0123456789" for _ in range(100))
    turns = (
        '[{"action":"search","query":"book","hits":[{"id":"1","title":"Book","score":1.5}],"outcome":"found",'
        '"tokens":50,"text":"<search>book</search>","formed":true},{"action":"answer","answer":"Ada","hits":[],'
        '"outcome":"answered","tokens":50,"text":"<answer>Ada</answer>","formed":true}]'
    )
    middle = (
        f'"weights_versions":[{",".join("0" * 100)}],"ids":[{numbers}],"origin":[["given",150],["sampled",50],'
        f'["given",150],["sampled",50]],"logprobs":[{logprobs}],"turns":{turns},"stop":"answered","failure":null,'
    )
    for step in range(1, STEPS + 1):
        starts, lines, end = array("Q"), [], 0
        for place in range(ROWS):
            question, right = question_of(step, place), place % 3 == 0
            line = (
                f'{{"version":1,"question_id":"q{question}","data_source":"nq","question":"Who wrote book {question}?",'
                f'"golden_answers":["Ada"],"group":{place // 8},"sample":{place % 8},"step":{step},{middle}'
                f'"score":{{"total":{float(right)},"parts":{{"em":{float(right)},"searches":1.0}}}}}}\n'
            )
            starts.append(end)
            lines.append(line)
            end += len(line)
        path = run.trajectories(step)
        path.write_text("".join(lines))
        path.with_suffix(".offsets").write_bytes(starts.tobytes())


def seconds(process: Process) -> float:
    """The time a process has used of the processors: what a request takes, however busy the machine is."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(process: Process) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def searched(process: Process, address: str, text: str) -> list[str]:
    """Everything that has a text, page by page; none of them may keep a reader waiting."""
    rows: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        before = seconds(process)
        page = get(address, "/api/trajectories", run="runs/big", text=text, **cursor)
        assert seconds(process) - before < 1.0
        rows += [row["at"] for row in page["rows"]]
        if page["next"] is None:
            return rows
        cursor = {"cursor": page["next"]}


def test_a_hundred_thousand_trajectories_are_paged_filtered_and_searched(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "runs" / "big", {"config": {}})
    write_many(run)
    with viewing(home=tmp_path) as (process, address):
        before = seconds(process)
        first = get(address, "/api/trajectories", run="runs/big")
        assert seconds(process) - before < 1.0
        assert (first["total"], first["complete"], len(first["rows"])) == (STEPS * ROWS, True, 50)
        assert first["rows"][0]["at"] == f"{STEPS}.0"
        wanted: dict[str, Any] = {"run": "runs/big", "question": "q217", "reward_min": 0.5}
        answers = []
        for _ in range(200):
            before = seconds(process)
            answers.append(get(address, "/api/trajectories", **wanted))
            assert seconds(process) - before < 1.0
            if answers[-1]["complete"]:
                break
        places = [(step, place) for step in range(1, STEPS + 1) for place in range(ROWS)]
        right = [each for each in places if question_of(*each) == 217 and each[1] % 3 == 0]
        assert answers[-1]["complete"]
        assert answers[-1]["total"] == len(right)
        assert {row["question"] for row in answers[-1]["rows"]} == {"Who wrote book 217?"}
        assert searched(process, address, "book 9999?") == []
        assert get(address, "/api/trajectory", run="runs/big", at="50.999")["group"] == 124
        assert get(address, "/api/question", run="runs/big", question="q217")["steps"][0]["samples"] == 8
        assert peak_mib(process) < 500
    with viewing(home=tmp_path) as (process, address):
        before = seconds(process)
        again = get(address, "/api/trajectories", **wanted)
        assert again["complete"], "the index was kept"
        assert seconds(process) - before < 1.0
        assert again["rows"] == answers[-1]["rows"]


def test_a_run_is_followed_and_the_viewer_ends_when_told(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "runs" / "live", {"config": {}})
    with viewing(home=tmp_path) as (process, address):
        first = get(address, "/api/metrics", run="runs/live")
        run.append_metrics(1, {"reward/mean": 0.5})
        then = get(address, "/api/metrics", run="runs/live", cursor=first["cursor"])
        assert then["columns"] == {"step": [1], "reward/mean": [0.5]}
        assert "<!doctype html>" in httpx.get(address).text.lower()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=15)
        assert (process.returncode, complaints) == (0, "")


def test_paths_as_they_come_over_the_wire_lead_nowhere(tmp_path: Path) -> None:
    """Clients tidy up paths before they send them; this one does not."""
    Run.create(tmp_path / "runs" / "first", {"config": {}})
    (tmp_path / "secret.json").write_text('"secret"')
    with viewing("runs", home=tmp_path) as (_, address):
        for path in (
            "/../secret.json",
            "/static/../../../../../../../../../etc/passwd",
            "/static/..%2f..%2fserver.py",
            "/static/%2e%2e/%2e%2e/server.py",
            "//etc/passwd",
            f"/static/{tmp_path}/secret.json",
            "/api/run?run=runs/first/../../secret.json",
            f"/api/run?run={tmp_path}/secret.json",
        ):
            status, body = _raw(address, path)
            assert status in (400, 404), path
            assert 'secret"' not in body
            assert "root:" not in body
        assert _raw(address, "/api/library", "evil.example")[0] == 421
        assert _raw(address, "/api/library")[0] == 200


def test_nothing_to_show_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "view", "--no-open", "--port", "0"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert "sleuth view RUNS" in found.stderr


@pytest.mark.parametrize("name", ["absent", "file"])
def test_what_is_no_folder_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", COMMAND, "view", name, "--no-open", "--port", "0"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert f"{name} " in found.stderr


def test_an_empty_folder_is_watched_until_a_run_begins(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with viewing(home=tmp_path) as (process, address):
        assert process.stdout
        assert process.stdout.readline().endswith("sleuth train quickstart --out runs/quickstart-1\n")
        assert get(address, "/api/library")["runs"] == []
        Run.create(tmp_path / "runs" / "quickstart-1", {"config": {}})
        assert [each["id"] for each in get(address, "/api/library")["runs"]] == ["runs/quickstart-1"]


def test_run_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{cut")
    command = [sys.executable, "-c", COMMAND, "view", str(tmp_path), "--no-open", "--port", "0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert "manifest.json" in found.stderr


def _raw(address: str, path: str, host: str | None = None) -> tuple[int, str]:
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: {host or parts.netloc}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
    return int(answer.split(" ", 2)[1]), answer
