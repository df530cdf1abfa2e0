"""Retrieval on a Ray cluster of two nodes: the bytes and the answers of one process, also after kills."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sleuth.corpus.passages import survey
from sleuth.retrieval.dense.encoder import Encoder
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.dense.vectors import build, open_vectors

pytestmark = [pytest.mark.e2e, pytest.mark.ray]

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
# The build of the command, with blocks so small that few passages make many.
BUILD = """
import sys
from pathlib import Path
from sleuth.cluster.embedding import cluster_encoder
from sleuth.retrieval.dense.encoder import Encoder
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.dense.vectors import build

home, out = Path(sys.argv[2]), Path(sys.argv[3])
encoder = Encoder.load(encoder_settings("minilm"), "cpu")
with cluster_encoder(sys.argv[1], 2, "cpu") as encode:
    progress = lambda stage, done, total: print(done, flush=True)
    build(home / "corpus.jsonl", home / "offsets.npy", out, encoder, progress, block=16, encode_blocks=encode)
"""
COMMAND = "from sleuth.cli.main import main; main()"
COUNT = 200
STARTUP = 900  # seconds: every process imports torch, on a machine that may be busy
WORDS = ["river", "castle", "painter", "village", "novel", "island", "comet"]
QUERIES = ["castle by the river", "a painter", "comet comet", "village 3 and island 5", "novel", "river"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CLUSTER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.communicate("")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, in which many passages repeat others, and its offsets."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [" ".join(WORDS[(n * p) % 7] for p in range(1, 2 + n % 9)) for n in range(COUNT)]
    rows = [json.dumps({"id": str(n * 7 % COUNT), "contents": text}) for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    survey(folder / "corpus.jsonl", folder)
    return folder


def sleuth(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=STARTUP, check=False)


@pytest.fixture(scope="module")
def dense(home: Path) -> Path:
    ended = sleuth("index", "build", home / "corpus.jsonl", "--out", home / "dense", "--kind", "dense")
    assert ended.returncode == 0, ended.stderr
    return home / "dense"


def test_index_built_on_a_cluster_has_the_bytes_of_one_process(home: Path, dense: Path, address: str) -> None:
    words = ("--kind", "dense", "--ray", address, "--replicas", "2")
    ended = sleuth("index", "build", home / "corpus.jsonl", "--out", home / "on-ray", *words)
    assert ended.returncode == 0, ended.stderr
    names = sorted(path.name for path in dense.iterdir())
    assert names == sorted(path.name for path in (home / "on-ray").iterdir())
    for name in names:
        assert (home / "on-ray" / name).read_bytes() == (dense / name).read_bytes(), name


def test_killed_build_continues_with_and_without_the_cluster(home: Path, address: str, tmp_path: Path) -> None:
    encoder = Encoder.load(encoder_settings("minilm"), "cpu")
    files = (home / "corpus.jsonl", home / "offsets.npy")
    (tmp_path / "whole").mkdir()
    build(*files, tmp_path / "whole", encoder, block=16)
    out = tmp_path / "out"
    out.mkdir()
    words = [sys.executable, "-c", BUILD, address, str(home), str(out)]
    finished = 0
    for _ in range(2):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            line = process.stdout.readline()
            process.kill()
        assert finished < int(line) < COUNT
        finished = int(line)
    heard: list[int] = []
    build(*files, out, encoder, lambda _stage, done, _total: heard.append(done), block=16)
    assert finished < heard[0]
    assert heard[-1] == COUNT
    assert (out / "vectors.npy").read_bytes() == (tmp_path / "whole" / "vectors.npy").read_bytes()
    assert open_vectors(out, COUNT, encoder.dimensions).any()


@contextmanager
def serving(*words: str | Path) -> Iterator[str]:
    """The address of a server that is stopped at the end, as by Ctrl-C."""
    command = [sys.executable, "-c", COMMAND, "serve", "retriever", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = next(line for line in process.stdout if line.startswith("serving"))
            found = re.search(r"http://[\d.:]+(?= \()", line)
            assert found, line
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
            assert process.wait(STARTUP) == 0


def search(address: str, queries: list[str], k: int) -> Any:
    body = {"queries": queries, "topk": k, "return_scores": True}
    answer = httpx.post(f"{address}/retrieve", json=body, timeout=STARTUP)
    assert answer.status_code == 200, answer.text
    return answer.json()


def replicas(name: str) -> list[int]:
    """The processes of the replicas whose application has this name in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::ServeReplica") and name in title:
            found.append(int(folder.name))
    return found


def test_shards_answer_like_the_whole_index(dense: Path, address: str) -> None:
    with serving(dense) as whole, serving(dense, "--ray", address, "--shards", "3") as sharded:
        for k in (1, 5, COUNT):
            assert search(sharded, QUERIES, k) == search(whole, QUERIES, k)
        assert httpx.get(f"{sharded}/readyz", timeout=60).json()["shards"] == [{"replicas": 1, "ready": 1}] * 3
        wrong = [httpx.post(f"{each}/retrieve", json={"queries": 3}, timeout=60) for each in (whole, sharded)]
        assert wrong[0].status_code == wrong[1].status_code == 422
        assert wrong[0].json() == wrong[1].json()


def test_killed_replica_is_replaced_and_no_request_fails(home: Path, address: str) -> None:
    index = home / "words"
    assert sleuth("index", "build", home / "corpus.jsonl", "--out", index).returncode == 0
    with serving(index, "--ray", address, "--replicas", "2") as served, ThreadPoolExecutor(4) as pool:
        expected = {query: search(served, [query], 5) for query in QUERIES}
        before = replicas("words")
        assert len(before) == 2
        end, killed = time.monotonic() + STARTUP, False
        ready: list[dict[str, int]] = []
        while not killed or ready != [{"replicas": 2, "ready": 2}] or before[0] in replicas("words"):
            assert time.monotonic() < end, (ready, before, replicas("words"))
            answers = [(query, pool.submit(search, served, [query], 5)) for query in QUERIES * 4]
            if not killed:
                os.kill(before[0], signal.SIGKILL)
                killed = True
            assert all(answer.result() == expected[query] for query, answer in answers)
            answer = httpx.get(f"{served}/readyz", timeout=60)
            ready = answer.json().get("shards", [])
        assert len(replicas("words")) == 2
    assert replicas("words") == []


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--shards", "2"), ["BM25", "--replicas"]),
        (("--replicas", "99"), ["99 CPUs", "have 4"]),
        (("--device", "cuda"), ["GPUs", "have 0"]),
    ],
)
def test_what_a_cluster_cannot_do_is_one_line(
    home: Path, dense: Path, address: str, words: tuple[str, ...], facts: list[str]
) -> None:
    index = dense if "--device" in words else home / "lines"
    if not index.exists():
        assert sleuth("index", "build", home / "corpus.jsonl", "--out", index).returncode == 0
    ended = sleuth("serve", "retriever", index, "--ray", address, "--port", "0", *words)
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert all(fact in line for fact in facts), line
