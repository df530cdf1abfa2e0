"""Training runs with real vLLM servers: one at an address, and one started and stopped by the run."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.servers.process import ServerProcess, start
from sleuth.engines.vllm.dialect import Vllm
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.model.packing import row
from sleuth.model.policy import Policy
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run
from sleuth.train.parity import compare

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]

Bench = Any
EAGER = "--enforce-eager --gpu-memory-utilization 0.05 --kv-cache-memory-bytes 1073741824"
QUIET = {"HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "0"}
SMALL = (
    "engine.kind=vllm",
    "train.steps=3",
    "train.learning_rate=0.003",
    "model.dtype=float32",
    "evaluate.questions=2",
)
MAIN = "from sleuth.cli.main import main; main()"


@pytest.fixture(scope="module")
def server(bench: Bench) -> Iterator[ServerProcess]:
    command, model = [os.environ["SLEUTH_VLLM"], "serve"], bench.path / "model"
    options, log = EAGER.split(), bench.path / "server.log"
    with start(
        Vllm(), command, model, log, context=160, slots=8, dtype="float32", options=options, environment=QUIET
    ) as running:
        yield running


def sleuth(bench: Bench, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command where vLLM can be started: without what the tests set for Triton."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        cwd=bench.path,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def settings(*knobs: str) -> list[str]:
    return [word for knob in knobs for word in ("--set", knob)]


def sampled(address: str, policy: Policy, prompt: list[int]) -> Completion:
    async def main() -> Completion:
        engine = await VllmEngine([address], policy.tokens, context=160).connect()
        completion = await engine.generate(prompt, Sampling(40, seed=1))
        await engine.close()
        return completion

    return asyncio.run(main())


def apart(policy: Policy, prompt: list[int], completion: Completion) -> float:
    """How far a policy's logprobs are from those that tokens came with, in the mean."""
    ids, scored = [*prompt, *completion.ids], (0.0,) * len(prompt) + (1.0,) * len(completion.ids)
    return compare(policy, [row(ids, scored, old=completion.logprobs)], 1.0).mean


def serving(bench: Bench) -> str:
    """The processes that serve the model."""
    named = f"serve {bench.path / 'model'}"
    return subprocess.run(["pgrep", "-f", named], capture_output=True, text=True, check=False).stdout


def test_three_steps_with_a_server_by_address(bench: Bench, server: ServerProcess) -> None:
    ended = sleuth(
        bench, "train", "small.toml", "--out", "served", *settings(*SMALL, f"engine.url={server.address}/v1")
    )
    assert ended.returncode == 0, ended.stderr
    assert "logprobs of engine and trainer differ by" in ended.stderr
    assert "old logprobs: from the engine" in ended.stderr
    assert "correction" not in ended.stderr
    run: Run = bench.run("served")
    steps = [dict(each) for each in run.metrics()]
    assert steps[0]["parity/mean"] < 1e-3
    # In every step the server had the weights that the trainer had then.
    assert [each["step"] for each in steps[1:]] == [1, 2, 3]
    apart_by_step = [each["parity/k3"] for each in steps[1:] if "parity/k3" in each]
    assert apart_by_step
    assert max(apart_by_step) < 1e-4
    assert [each["staleness/max"] for each in steps[1:]] == [0, 0, 0]
    versions = [
        {v for each in read_rows(run.trajectories(step)) for v in each["weights_versions"]} for step in (1, 2, 3)
    ]
    assert versions == [{0}, {1}, {2}]
    # And when it ended, those of the last step.
    prompt = Policy.load(bench.path / "model", torch.device("cpu")).tokens.encode("Question: Who wrote the book?\n")
    policies = [Policy.load(folder, torch.device("cpu")) for folder in (bench.path / "model", run.checkpoint(3))]
    completion = sampled(server.address, policies[1], prompt)
    before, after = (apart(policy, prompt, completion) for policy in policies)
    assert after < 1e-4
    assert before > 1e-3
    assert not (run.path / "weights").exists() or not list((run.path / "weights").iterdir())


def test_a_server_is_given_the_weights_that_are_evaluated(bench: Bench, server: ServerProcess) -> None:
    """Whatever it had before: here those of the run after its last step."""
    address = settings(f"engine.url={server.address}")
    ended = sleuth(bench, "evaluate", "served", "--before", "--limit", "2", "--out", "before", *address)
    assert ended.returncode == 0, ended.stderr
    policy = Policy.load(bench.path / "model", torch.device("cpu"))
    prompt = policy.tokens.encode("Question: Who wrote the book?\n")
    assert apart(policy, prompt, sampled(server.address, policy, prompt)) < 1e-3


def test_a_run_starts_a_server_of_its_own_and_stops_it(bench: Bench) -> None:
    others = serving(bench)
    command = f"engine.command={os.environ['SLEUTH_VLLM']} serve {EAGER}"
    ended = sleuth(bench, "train", "small.toml", "--out", "own", *settings(*SMALL, command))
    assert ended.returncode == 0, ended.stderr
    run: Run = bench.run("own")
    assert [each["step"] for each in run.metrics()] == [0, 1, 2, 3]
    assert next(iter(run.metrics()))["parity/mean"] < 1e-3
    assert "vllm" in (run.path / "vllm.log").read_text()
    assert serving(bench) == others
