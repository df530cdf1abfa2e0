"""The server as a process: what it says, what it answers, how it ends; and what it bears."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from sleuth.bench.retrieval import compare_servers
from sleuth.retrieval.index import load

pytestmark = pytest.mark.e2e

COMMAND = "from sleuth.cli.main import main; main()"

# A retriever that takes its time, so that requests are under way whenever the server is stopped.
SLOW = """
import asyncio, sys
from sleuth.records import Hit, Passage
from sleuth.http.server import bind, serve
from sleuth.retrieval.service.server import Facts, application

class Slow:
    async def search(self, queries, k):
        await asyncio.sleep(float(sys.argv[1]))
        return [[Hit(Passage(query, query), 1.0)] for query in queries]

listener = bind("127.0.0.1", 0)
address = "http://127.0.0.1:%d (" % listener.getsockname()[1]
app = application(Slow(), Facts("slow", "slow", 0))
serve(app, listener, lambda: print(address, flush=True), shutdown_seconds=int(sys.argv[2]))
"""

Nursery = Any
Process = subprocess.Popen[str]


@contextmanager
def started(code: str, *words: str, **environment: str) -> Iterator[tuple[Process, str]]:
    """A server in a process of its own, and the address it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+(?= \()", line)
        assert found, line + process.communicate()[1]
        yield process, found.group()
    finally:
        process.kill()
        process.communicate()


def ended(process: Process, number: signal.Signals, seconds: float = 10) -> tuple[int, str]:
    """Stops a server; how it ended and what it complained of."""
    process.send_signal(number)
    _, complaints = process.communicate(timeout=seconds)
    return process.returncode, complaints


@pytest.fixture(scope="module")
def index(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("serve")
    rows = [
        {"id": str(number), "contents": f'"Town {number}"\nTown {number} has {number} bridges.'}
        for number in range(500)
    ]
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = nursery.sleuth(home, "index", "build", "corpus.jsonl", "--out", "index")
    assert built.returncode == 0, built.stderr
    return home / "index"


def test_an_index_is_served_found_by_its_file_and_stopped(index: Path, tmp_path: Path) -> None:
    words = (str(index), "--port", "0", "--address-dir", str(tmp_path), "--k", "2", "--token-env", "THE_TOKEN")
    with started(COMMAND, "serve", "retriever", *words, THE_TOKEN="secret") as (process, address):
        (file,) = tmp_path.iterdir()
        assert f"http://{file.read_text()}" == address
        allowed = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert httpx.post(f"{address}/retrieve", json={"queries": ["town"]}).status_code == 401
        ready = httpx.get(f"{address}/readyz", headers=allowed).json()
        assert (ready["index"], ready["kind"], ready["passages"]) == (str(index), "bm25", 500)
        answer = httpx.post(f"{address}/retrieve", json={"queries": ["town 7", "town 8"]}, headers=allowed).json()
        assert [rows[0]["id"] for rows in answer["result"]] == ["7", "8"]
        assert [len(rows) for rows in answer["result"]] == [2, 2]
        assert ended(process, signal.SIGINT) == (0, "")
    assert list(tmp_path.iterdir()) == []


REFUSED: dict[str, tuple[Callable[[Path], Sequence[str]], str]] = {
    "no index": (lambda index: [str(index.parent)], "index folder"),
    "no token": (lambda index: [str(index), "--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    "no such host": (lambda index: [str(index), "--host", "198.51.100.1"], "198.51.100.1"),
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_said_in_a_line(
    index: Path, words: Callable[[Path], Sequence[str]], sentence: str, nursery: Nursery, tmp_path: Path
) -> None:
    done = nursery.sleuth(tmp_path, "serve", "retriever", "--port", "0", *words(index))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_a_port_in_use_is_said_before_anything_is_loaded(nursery: Nursery, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = nursery.sleuth(tmp_path, "serve", "retriever", tmp_path, "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert port in done.stderr


def asked(address: str, query: str) -> object:
    return httpx.post(f"{address}/retrieve", json={"queries": [query]}, timeout=30).json()


def under_way(address: str) -> int:
    page = httpx.get(f"{address}/metrics").text
    (line,) = re.findall(r"^sleuth_queries_total (\S+)$", page, re.MULTILINE)
    return int(float(line))


def test_what_was_accepted_is_answered_before_the_end() -> None:
    queries = [f"query {number}" for number in range(20)]
    with started(SLOW, "1.5", "30") as (process, address), ThreadPoolExecutor(20) as clients:
        answers = clients.map(partial(asked, address), queries)
        while under_way(address) < 20:
            sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert list(answers) == [{"result": [[{"id": query, "contents": query}]]} for query in queries]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{address}/healthz")
        _, complaints = process.communicate(timeout=10)
        assert (process.returncode, complaints) == (0, "")


def until_refused(address: str, all_began: Barrier) -> None:
    """Asks on one connection, again and again, until no new one is taken; any other end is an error."""
    with httpx.Client(timeout=30) as client:
        client.get(f"{address}/healthz")
        all_began.wait(timeout=30)
        while True:
            try:
                answer = client.post(f"{address}/retrieve", json={"queries": ["query"]})
            except httpx.ConnectError:
                return
            assert answer.json() == {"result": [[{"id": "query", "contents": "query"}]]}


def test_clients_that_never_pause_lose_no_answer_at_the_end() -> None:
    all_began = Barrier(9)
    with started(SLOW, "0", "30") as (process, address), ThreadPoolExecutor(8) as clients:
        ends = [clients.submit(until_refused, address, all_began) for _ in range(8)]
        all_began.wait(timeout=30)
        sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert [end.result() for end in ends] == [None] * 8
        _, complaints = process.communicate(timeout=10)
        assert (process.returncode, complaints) == (0, "")


def test_a_search_without_end_does_not_keep_the_server_alive() -> None:
    with started(SLOW, "1000", "1") as (process, address), ThreadPoolExecutor(1) as clients:
        clients.submit(asked, address, "query")
        while under_way(address) < 1:
            sleep(0.05)
        began = monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
        assert process.returncode == 0
        assert monotonic() - began < 5


def test_a_length_that_lies_harms_only_its_sender() -> None:
    with started(SLOW, "0", "5") as (process, address):
        host, port = address.removeprefix("http://").split(":")
        named = b"POST /retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head = named + b"content-length: %d\r\n\r\n"
        with socket.create_connection((host, int(port))) as more, socket.create_connection((host, int(port))) as less:
            more.sendall(head % 10**12 + b"{}")
            assert more.recv(1000).startswith(b"HTTP/1.1 413")
            less.sendall(head % 2 + b'{}GET /and more {"queries"')
            # Which of the two faults is named depends on the parser that is installed.
            assert less.recv(1000).startswith((b"HTTP/1.1 422", b"HTTP/1.1 400"))
        assert asked(address, "query") == {"result": [[{"id": "query", "contents": "query"}]]}
        assert ended(process, signal.SIGTERM)[0] == 0


def test_many_clients_at_once_get_answers_and_no_errors(index: Path) -> None:
    queries = [f"how many bridges has town {number}?" for number in range(300)]
    gathering, naive = compare_servers(partial(load, index), queries, clients=64, seconds=1.5)
    for load_seen in (gathering, naive):
        assert load_seen.errors == 0
        assert load_seen.answered > 64
        assert 0 < load_seen.p50_ms <= load_seen.p99_ms
