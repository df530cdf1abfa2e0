"""Training runs with real vLLM servers: at an address, also of two ranks, started by the run, or by a worker on Ray."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.servers.process import ServerProcess, start
from sleuth.engines.vllm.dialect import Vllm
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.model.packing import row
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
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
        timeout=1500,
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


def apart_from_samples(folder: Path, run: Run, step: int) -> float:
    """How far a model's logprobs are from those that the episodes of a step came with, in the mean."""
    rows = []
    for each in read_rows(run.trajectories(step)):
        weights = [float(origin == "sampled") for origin, count in each["origin"] for _ in range(count)]
        rows.append(row(each["ids"], weights, old=each["logprobs"]))
    return compare(Policy.load(folder, torch.device("cpu")), rows, 1.0).mean


def processes(*criteria: str) -> str:
    return subprocess.run(["pgrep", *criteria], capture_output=True, text=True, check=False).stdout


def serving(bench: Bench, *criteria: str) -> str:
    """The processes that serve a model, and those that supervise them."""
    return processes(*criteria, "-f", f"serve {bench.path}/")


def require_same_weights(run: Run, steps: int) -> None:
    """In every step the server had the weights that the trainer had then, which were sent to it."""
    rows = [dict(each) for each in run.metrics()]
    assert rows[0]["parity/mean"] < 1e-3
    assert [each["step"] for each in rows] == list(range(steps + 1))
    apart_by_step = [each["parity/k3"] for each in rows[1:] if "parity/k3" in each]
    assert apart_by_step
    assert max(apart_by_step) < 1e-4
    assert [each["staleness/max"] for each in rows[1:]] == [0] * steps
    assert all(each["weights/bytes"] > 0 and each["weights/seconds"] > 0 for each in rows[1:])


def require_last_weights(bench: Bench, run: Run, server: ServerProcess) -> None:
    """After a run of three steps the server has the weights of the last one, which differ from those at the start."""
    policies = [Policy.load(folder, torch.device("cpu")) for folder in (bench.path / "model", run.checkpoint(3))]
    prompt = policies[0].tokens.encode("Question: Who wrote the book?\n")
    completion = sampled(server.address, policies[1], prompt)
    before, after = (apart(policy, prompt, completion) for policy in policies)
    assert after < 1e-4
    assert before > 1e-3


def test_three_steps_with_a_server_by_address(bench: Bench, server: ServerProcess) -> None:
    ended = sleuth(
        bench, "train", "small.toml", "--out", "served", *settings(*SMALL, f"engine.url={server.address}/v1")
    )
    assert ended.returncode == 0, ended.stderr
    assert "logprobs of engine and trainer differ by" in ended.stderr
    assert "old logprobs: from the engine" in ended.stderr
    assert "correction" not in ended.stderr
    run: Run = bench.run("served")
    require_same_weights(run, 3)
    versions = [
        {v for each in read_rows(run.trajectories(step)) for v in each["weights_versions"]} for step in (1, 2, 3)
    ]
    assert versions == [{0}, {1}, {2}]
    require_last_weights(bench, run, server)
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


def test_two_ranks_sample_from_one_server(bench: Bench, server: ServerProcess) -> None:
    """Their weights are sharded: both gather them, and the first sends them."""
    address = f"engine.url={server.address}"
    ended = sleuth(bench, "train", "small.toml", "--out", "ranks", "--nproc", "2", *settings(*SMALL, address))
    assert ended.returncode == 0, ended.stderr
    require_same_weights(bench.run("ranks"), 3)


@pytest.mark.ray
def test_trainers_on_ray_sample_from_a_server_by_address(bench: Bench, server: ServerProcess) -> None:
    changes = (*SMALL, f"engine.url={server.address}", "cluster.trainers=2", "cluster.cpus=0.5")
    ended = sleuth(bench, "train", "small.toml", "--out", "urls", "--ray", "local", *settings(*changes))
    assert ended.returncode == 0, ended.stderr
    run: Run = bench.run("urls")
    require_same_weights(run, 3)
    require_last_weights(bench, run, server)


@pytest.fixture
def dense(bench: Bench, tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> str:
    """The setting of a model whose layers matter: those of the bench's own are zero, so no adapter changes it."""
    if not (bench.path / "dense").exists():
        Policy(tiny(head_dim=32, tie_word_embeddings=False), tokens).save(bench.path / "dense")
    return "model.policy=dense"


def test_adapters_are_sent_alone(bench: Bench, dense: str) -> None:
    command = f"engine.command={os.environ['SLEUTH_VLLM']} serve {EAGER}"
    changes = (dense, "model.lora.rank=4", "train.learning_rate=0.05", "train.steps=2", command)
    ended = sleuth(bench, "train", "small.toml", "--out", "adapter", *settings(*SMALL, *changes))
    assert ended.returncode == 0, ended.stderr
    run: Run = bench.run("adapter")
    require_same_weights(run, 2)
    base = (bench.path / "dense" / "model.safetensors").stat().st_size
    last = [dict(each) for each in run.metrics()][-1]
    assert last["weights/bytes"] < base
    assert last["policy/gradient_norm"] > 0
    assert apart_from_samples(bench.path / "dense", run, 2) > 1e-2  # so it sampled with the adapter


@pytest.mark.ray
def test_worker_on_ray_owns_a_server_and_replaces_it_when_it_dies(bench: Bench, dense: str) -> None:
    command = f"engine.command={os.environ['SLEUTH_VLLM']} serve {EAGER}"
    words = [
        "train",
        "small.toml",
        "--out",
        "rayed",
        "--ray",
        "local",
        *settings(*SMALL, dense, command, "train.steps=4"),
    ]
    errors, metrics = bench.path / "rayed.err", bench.path / "rayed" / "metrics.jsonl"
    others = set(serving(bench).split())
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *words], cwd=bench.path, env=os.environ | QUIET, stdout=file, stderr=file
        )
    try:
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            assert process.poll() is None, errors.read_text()
            time.sleep(0.1)
        server = int(serving(bench, "--newest"))  # alone: its engine and its supervisor still run
        os.kill(server, signal.SIGKILL)
        assert process.wait(1500) == 0, errors.read_text()
    finally:
        process.kill()
        process.wait()
    run: Run = bench.run("rayed")
    require_same_weights(run, 4)
    rows = [dict(each) for each in run.metrics()][1:]
    assert sum(each["cluster/workers_restarted"] for each in rows) == 1
    assert all(each["cluster/finished"] == each["cluster/asked"] for each in rows)
    assert (run.path / "vllm-0.log").is_file()
    assert not list((run.path / "weights").rglob("*.safetensors"))
    assert set(serving(bench).split()) <= others
    assert not processes("-g", str(server))  # its engine, whose processes have other names
    assert apart_from_samples(bench.path / "dense", run, 4) > 1e-2
