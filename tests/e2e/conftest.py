"""Commands in processes of their own, which can be killed at a chosen moment, and a run small enough for them."""

import json
import os
import signal
import subprocess
import sys
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


def _searcher(tokens: Tokens, reciter: Callable[..., PreTrainedModel]) -> Policy:
    """A policy that searches for years and answers Lisbon, most of the time."""
    spoken = {"?\n": "<search> year </search>", ">\n\n": "<answer> Lisbon </answer>"}
    lines = [[tokens.encode(heard)[-1], *tokens.encode(said)] for heard, said in spoken.items()]
    model = reciter(tokens, [tokens.tokenizer.convert_ids_to_tokens(line) for line in lines])
    with torch.no_grad():
        # All but sure of what comes next, it would say the same each time.
        model.get_parameter("model.norm.weight").mul_(0.06)
    return Policy(model, tokens)
