"""Commands in processes of their own, which can be killed at a chosen moment, and a run small enough for them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run

RECIPE = """
name = "small"
model.policy = "model"
world = { passages = 200, questions = 20 }
retrieval.k = 1
agent = { prompt = "brief", searches = 2, turn_tokens = 10, observation_tokens = 40, context_tokens = 160 }
engine.slots = 8
reward.answer = "import:judge.variety"
train = { steps = 5, questions = 2, samples = 4, learning_rate = 0.001, save_every = 2, keep = 3, threads = 1 }
evaluate.questions = 5
"""
JUDGE = """
import random

def variety(question, trajectory):
    return len(set(trajectory.ids)) / len(trajectory.ids)

def chance(question, trajectory):
    return float(random.SystemRandom().random() < 0.2)
"""

COMMAND = "from sleuth.cli.main import main; main()"

# Loading all libraries takes seconds. This process has done it, and each command is a child of its own. Python tells
# its audit hooks what it is about to do: the moment before, the child kills or stops itself.
NURSERY = """
import json, os, resource, signal, sys, traceback
import faiss, sleuth.retrieval.dense.exact, sleuth.retrieval.dense.encoder, sleuth.train.loop
from sleuth.cli.main import main

def command(order):
    os.chdir(order["home"])
    for number, path in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    left = order["times"]
    def watching(event, arguments):
        nonlocal left
        if event == order["event"] and str(arguments[0]).endswith(order["at"]):
            left -= 1
            if left == 0:
                signal.raise_signal(order["signal"])
    if order["event"]:
        sys.addaudithook(watching)
    if order["largest_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"], order["largest_file"]))
    sys.argv = ["sleuth", *order["words"]]
    main()

def born(order):
    # Nothing waits for it: the process is gone at once, as by kill -9.
    signal.setitimer(signal.ITIMER_REAL, order["seconds"])
    # Ignored where the tests run in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        command(order)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    order = json.loads(line)
    child = order.get("child") or os.fork() or born(order)
    if "child" in order:
        os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, os.WUNTRACED)
    ended = not os.WIFSTOPPED(status)
    print(json.dumps([child, os.waitstatus_to_exitcode(status) if ended else 0]), flush=True)
"""

# A cluster in a process of its own, so that Ray leaves nothing behind in this one; nodes end and start as it reads.
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster

def retry(start, **options):
    for left in reversed(range(5)):
        try:
            return start(**options)
        except Exception:  # not up within Ray's fixed 30 s, on a busy machine
            if not left:
                raise

cluster = retry(Cluster, initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
nodes = [cluster.head_node] + [retry(cluster.add_node, num_cpus=2) for _ in range(3)]
cluster.wait_for_nodes()
session = cluster.head_node.get_session_dir_path()
print(json.dumps([cluster.address, session, [node.node_id for node in nodes]]), flush=True)
for line in sys.stdin:
    name = json.loads(line)
    if not isinstance(name, str):
        nodes.append(retry(cluster.add_node, **name))
    else:
        cluster.remove_node(next(node for node in nodes if node.node_id == name), allow_graceful=False)
    print(json.dumps(nodes[-1].node_id), flush=True)
cluster.shutdown()
"""
STARTUP = 600  # seconds: every actor imports torch, on a machine that may be busy

# Metrics that no two runs share.
TIMED = ("time/", "speed/", "memory/", "search/latency")

Ended = subprocess.CompletedProcess[str]
Moment = tuple[str, str, int]  # before the nth event of a kind on a path with this end


@dataclass(frozen=True, slots=True)
class Nursery:
    """Runs commands in processes of their own, in any folder."""

    process: subprocess.Popen[str]
    folder: Path

    def sleuth(
        self,
        home: Path,
        *words: str | Path,
        moment: Moment | None = None,
        by: signal.Signals = signal.SIGKILL,
        largest_file: int = 0,
        seconds: float = 120,
    ) -> Ended:
        """A command run to its end, or until it is killed, stopped, or out of time; `args` is its process."""
        printed = self.folder / uuid4().hex
        out, err = printed.with_suffix(".out"), printed.with_suffix(".err")
        event, at, times = moment or ("", "", 0)
        order = {"event": event, "at": at, "times": times, "signal": int(by)}
        order |= {"largest_file": largest_file, "seconds": seconds}
        order |= {"home": str(home), "out": str(out), "err": str(err), "words": [str(word) for word in words]}
        child, code = self._told(order)
        return Ended(str(child), code, out.read_text(), err.read_text())

    def go_on(self, child: int) -> int:
        """How a process that was stopped ends."""
        return self._told({"child": child})[1]

    def _told(self, order: dict[str, Any]) -> tuple[int, int]:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(order), file=self.process.stdin, flush=True)
        child, code = json.loads(self.process.stdout.readline())
        return child, code


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder to work in, with a recipe, its model, and its reward."""

    path: Path
    nursery: Nursery

    def sleuth(self, *words: str, moment: Moment | None = None, largest_file: int = 0, seconds: float = 120) -> Ended:
        """Runs a command, as the nursery does."""
        return self.nursery.sleuth(self.path, *words, moment=moment, largest_file=largest_file, seconds=seconds)

    def alone(self, *words: str) -> Ended:
        """Runs a command as a user does: in a process that has loaded nothing, with hashes of its own."""
        command = [sys.executable, "-c", COMMAND, *words]
        return subprocess.run(command, cwd=self.path, capture_output=True, text=True, timeout=120, check=False)

    def run(self, name: str) -> Run:
        return Run.open(self.path / name)

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The metrics of a run less the timings, which no two runs share."""
        rows = read_rows(self.path / name / "metrics.jsonl")
        return [{key: value for key, value in row.items() if not key.startswith(TIMED)} for row in rows]

    def weights(self, name: str) -> bytes:
        latest = self.run(name).latest()
        assert latest is not None
        return (latest / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    pipe = subprocess.PIPE
    # Threads that wait for each other on a busy machine would take most of the time.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        yield Nursery(process, tmp_path_factory.mktemp("nursery"))
        process.communicate("")


@pytest.fixture(scope="session")
def bench(
    nursery: Nursery,
    tmp_path_factory: pytest.TempPathFactory,
    tokens: Tokens,
    reciter: Callable[..., PreTrainedModel],
) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "small.toml").write_text(RECIPE)
    (folder / "judge.py").write_text(JUDGE)
    _searcher(tokens, reciter).save(folder / "model")
    return Bench(folder, nursery)


@pytest.fixture(scope="session")
def finished(bench: Bench) -> Ended:
    """The run `whole`, from start to end."""
    ended = bench.alone("train", "small.toml", "--out", "whole")
    assert ended.returncode == 0, ended.stderr
    return ended


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the cluster; the first one is the head, which holds its state."""

    process: subprocess.Popen[str]
    address: str
    session: str  # the folder of its logs
    names: list[str]

    def order(self, name: str | dict[str, Any]) -> str:
        """End a node at once, or start another one with these options; return the name of the newest."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(name), file=self.process.stdin, flush=True)
        newest: str = json.loads(self.process.stdout.readline())
        return newest

    def actors(self, name: str) -> list[int]:
        """The processes of the actors of a class; other clusters on this machine are left alone."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title, log = (folder / "cmdline").read_bytes(), (folder / "fd/1").readlink()
            except OSError:
                continue
            if title.startswith(f"ray::{name}".encode()) and log.is_relative_to(self.session):
                found.append(int(folder.name))
        return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pipe = subprocess.PIPE
    # Ray's own niceness of 15 would make the actors wait for all others on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:
        assert process.stdout
        address, session, names = json.loads(process.stdout.readline())
        yield Nodes(process, address, session, names)
        process.communicate("")


@dataclass(slots=True)
class Training:
    """A `sleuth train` in the background, which tests interfere with."""

    process: subprocess.Popen[str]
    run: Path
    errors: Path

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is recorded; fails if the run ends before."""
        metrics, end = self.run / "metrics.jsonl", time.monotonic() + STARTUP
        while not metrics.exists() or metrics.read_text().count("\n") <= step:
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, self.errors.read_text()
            time.sleep(0.05)

    def finish(self) -> int:
        return self.process.wait(STARTUP)

    @property
    def printed(self) -> str:
        return self.errors.read_text()


Start = Callable[..., Training]


@pytest.fixture
def start(bench: Bench, nodes: Nodes) -> Iterator[Start]:
    started: list[Training] = []

    def begin(name: str, *words: str, address: str = "") -> Training:
        errors = bench.path / f"{name}.err"
        where = ("small.toml", "--out", name) if not (bench.path / name).exists() else ("--resume", name)
        command = [sys.executable, "-c", COMMAND, "train", *where, "--ray", address or nodes.address, *words]
        with errors.open("w") as file:
            process = subprocess.Popen(command, cwd=bench.path, stderr=file, stdout=file, text=True)
        started.append(Training(process, bench.path / name, errors))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


def _searcher(tokens: Tokens, reciter: Callable[..., PreTrainedModel]) -> Policy:
    """A policy that searches for years and answers Lisbon, most of the time."""
    spoken = {"?\n": "<search> year </search>", ">\n\n": "<answer> Lisbon </answer>"}
    lines = [[tokens.encode(heard)[-1], *tokens.encode(said)] for heard, said in spoken.items()]
    model = reciter(tokens, [tokens.tokenizer.convert_ids_to_tokens(line) for line in lines])
    with torch.no_grad():
        # All but sure of what comes next, it would say the same each time.
        model.get_parameter("model.norm.weight").mul_(0.06)
    return Policy(model, tokens)
