"""One run searched in five ways: its own index, its recording, that index by name, a server, a function."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Bench = Any
Ended = Any

OWN = """
name = "own"
model.policy = "model"
data = { train = "recorded/world/train.jsonl", test = "recorded/world/test.jsonl" }
retrieval = { index = "recorded/index", k = 1 }
agent = { prompt = "brief", searches = 2, turn_tokens = 10, observation_tokens = 40, context_tokens = 160 }
engine.slots = 8
reward.answer = "import:judge.variety"
train = { steps = 2, questions = 2, samples = 4, learning_rate = 0.001, save_every = 2, keep = 3, threads = 1 }
evaluate.questions = 5
"""
FUNCTION = """
from pathlib import Path
from sleuth.retrieval.index import load

INDEX = load(Path(__file__).with_name("recorded") / "index")

async def search(queries, k):
    return await INDEX.search(queries, k)
"""
COMMAND = "from sleuth.cli.main import main; main()"


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> Path:
    """A run of two steps that recorded its searches."""
    succeeded(train(bench, "small.toml", "recorded", "train.steps=2", "retrieval.record=true"))
    (bench.path / "own.toml").write_text(OWN)
    (bench.path / "own_search.py").write_text(FUNCTION)
    recording: Path = bench.path / "recorded" / "searches.jsonl"
    return recording


@pytest.fixture(scope="module")
def address(bench: Bench, recorded: Path) -> Iterator[str]:
    """A server of the run's index."""
    command = [sys.executable, "-c", COMMAND, "serve", "retriever", "recorded/index", "--port", "0"]
    with subprocess.Popen(command, cwd=bench.path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        line = server.stdout.readline()
        match = re.search(r"http://[\d.:]+(?= \()", line)
        assert match, line
        yield match.group()
        server.terminate()


def train(bench: Bench, recipe: str, out: str, *settings: str) -> Ended:
    given = [word for setting in settings for word in ("--set", setting)]
    return bench.sleuth("train", recipe, "--out", out, *given)


def succeeded(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr


def test_a_recording_holds_the_index_and_every_search(bench: Bench, recorded: Path) -> None:
    header, *rows = map(json.loads, recorded.read_text().splitlines())
    assert (header["kind"], len(header["index"])) == ("searches", 64)
    asked = {
        turn["query"]
        for step in (1, 2)
        for line in bench.run("recorded").trajectories(step).read_text().splitlines()
        for turn in json.loads(line)["turns"]
        if turn["outcome"] == "found"
    }
    assert asked
    assert asked <= {row["query"] for row in rows}
    assert {row["k"] for row in rows} == {1}


def test_a_replayed_run_is_the_run_and_needs_no_index(bench: Bench, recorded: Path) -> None:
    succeeded(train(bench, "small.toml", "replayed", "train.steps=2", "retrieval.replay=recorded/searches.jsonl"))
    assert bench.metrics("replayed") == bench.metrics("recorded")
    assert bench.weights("replayed") == bench.weights("recorded")
    assert not (bench.path / "replayed" / "index").exists()
    assert not (bench.path / "replayed" / "searches.jsonl").exists()


def test_another_run_is_not_replayed(bench: Bench, recorded: Path) -> None:
    replay = ("train.steps=2", "retrieval.replay=recorded/searches.jsonl")
    ended = train(bench, "small.toml", "strayed", *replay, "train.seed=1", "train.temperature=3.0")
    *_, last = ended.stderr.splitlines()
    assert last.startswith(f"sleuth: the recording {recorded} has no answer for ")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert not (bench.path / "strayed" / "summary.json").exists()


def test_a_recording_of_another_index_is_refused(bench: Bench, recorded: Path) -> None:
    (bench.path / "towns.jsonl").write_text('{"id": "1", "contents": "Oslo in the year 1624"}\n')
    succeeded(bench.sleuth("index", "build", "towns.jsonl", "--out", "towns"))
    ended = train(bench, "own.toml", "mixed", "retrieval.index=towns", f"retrieval.replay={recorded}")
    *_, last = ended.stderr.splitlines()
    assert last.startswith(f"sleuth: {recorded} was recorded from another index (")
    assert ended.returncode == 2
    assert not (bench.path / "mixed").exists()


def test_a_run_that_is_continued_goes_on_recording(bench: Bench, recorded: Path) -> None:
    begin = ("small.toml", "--out", "broken", "--set", "train.steps=2", "--set", "retrieval.record=true")
    assert bench.sleuth("train", *begin, event="open", at=".tmp-step-2.jsonl").returncode == -9
    succeeded(bench.sleuth("train", "--resume", "broken"))
    assert bench.metrics("broken") == bench.metrics("recorded")
    assert (bench.path / "broken" / "searches.jsonl").read_bytes() == recorded.read_bytes()


@pytest.mark.parametrize("index", ["recorded/index", "import:own_search.search"])
def test_the_same_index_by_another_name_gives_the_same_run(index: str, bench: Bench, recorded: Path) -> None:
    out = index.translate(str.maketrans("/:.", "---"))
    succeeded(train(bench, "own.toml", out, f"retrieval.index={index}"))
    assert bench.metrics(out) == bench.metrics("recorded")


def test_the_same_index_on_a_server_gives_the_same_run(bench: Bench, recorded: Path, address: str) -> None:
    succeeded(train(bench, "own.toml", "served", f"retrieval.index={address}", "retrieval.cache=100"))
    assert bench.metrics("served") == bench.metrics("recorded")
    ended = bench.sleuth("ask", "served", "Who wrote the book?")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Question: Who wrote the book?\n")
