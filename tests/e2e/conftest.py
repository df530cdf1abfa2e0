"""Commands in processes of their own, which can be killed at a chosen moment, and a run small enough for them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.model.tokens import Tokens
from sleuth.runs import Run, read_rows
from sleuth.train.policy import Policy

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
JUDGE = "def variety(question, trajectory):\n    return len(set(trajectory.ids)) / len(trajectory.ids)\n"

# Python tells its audit hooks what it is about to do: the moment before, the process kills itself, as kill -9 would.
PROCESS = """
import os, resource, signal, sys

def dying(event, arguments):
    if event == {event!r} and {path!r} in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

if {event!r}:
    sys.addaudithook(dying)
if {largest_file!r}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file!r}, {largest_file!r}))
from sleuth.cli.main import main
main()
"""

Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder to work in, with a recipe, its model, and its reward."""

    path: Path

    def sleuth(
        self, *words: str, event: str = "", at: str = "", largest_file: int = 0, seconds: float | None = None
    ) -> Ended:
        """Runs a command: to its end, or until it dies before `event` on a path with `at` in it, or after `seconds`."""
        code = PROCESS.format(event=event, path=at, largest_file=largest_file)
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=seconds or 120)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return Ended(process.args, process.returncode, out, err)

    def run(self, name: str) -> Run:
        return Run.open(self.path / name)

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The metrics of a run less the timings, which no two runs share."""
        rows = read_rows(self.path / name / "metrics.jsonl")
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]

    def weights(self, name: str) -> bytes:
        latest = self.run(name).latest()
        assert latest is not None
        return (latest / "model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, tokens: Tokens, reciter: Callable[..., PreTrainedModel]) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "small.toml").write_text(RECIPE)
    (folder / "judge.py").write_text(JUDGE)
    _searcher(tokens, reciter).save(folder / "model")
    return Bench(folder)


@pytest.fixture(scope="session")
def finished(bench: Bench) -> Ended:
    """The run `whole`, from start to end."""
    ended = bench.sleuth("train", "small.toml", "--out", "whole")
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
