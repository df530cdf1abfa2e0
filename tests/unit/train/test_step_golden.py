"""Golden losses: three small runs on recorded trajectories, held bit for bit against golden.json beside this file.

Weights and trajectories are drawn by Python's own generator, which gives the same bits everywhere. What is computed
from them does not by itself: MKL, oneDNN and torch choose kernels by what the CPU can do, which add in other orders.
So the runs that are compared are made in a process of its own, in which each is told to choose what every x86-64 CPU of
the last decade has (it is asked when torch is loaded), on one thread. Another release of torch may bring other kernels,
and other machines have other libraries: there the figures are compared to four digits, and the bits with a second run.

After a change that is meant to change the figures: python tests/unit/train/test_step_golden.py --write
"""

import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.model.attention import NAME
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Group, Question, Score, Segment, StopReason, Trajectory
from sleuth.sft.quickstart_policy import build_tokenizer
from sleuth.train.models import Critic
from sleuth.train.optimiser import Optimiser
from sleuth.train.step import Learner, StepRates

RECORD = Path(__file__).with_name("golden.json")
KERNELS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
CPU = torch.device("cpu")
WORDS = 96
STEPS = 3
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gae": {"advantage": "gae", "critic": {"gamma": 0.99, "lam": 0.95}},
    "gspo and KL": {"loss": "gspo", "normalise": "sequence", "kl": {"place": "loss", "coefficient": 0.1}},
}


def policy(seed: int) -> Policy:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=NAME)
    dice = random.Random(seed)
    with torch.no_grad():
        for name, each in model.named_parameters():
            numbers = [dice.uniform(-0.3, 0.3) + ("norm" in name) for _ in range(each.numel())]
            each.copy_(torch.tensor(numbers).view(each.shape))
    model.eval()
    return Policy(model, Tokens(build_tokenizer(["Who wrote it? Ada."])))


def episode(dice: random.Random, group: int) -> Trajectory:
    """A prompt, a turn, an observation and a turn, with logprobs as of an engine not quite like the policy."""
    runs = [dice.randrange(3, 9) for _ in range(4)]
    sampled = tuple(bool(place % 2) for place, length in enumerate(runs) for _ in range(length))
    ids = tuple(dice.randrange(WORDS) for _ in sampled)
    logprobs = tuple(dice.uniform(-7.0, -3.0) for each in sampled if each)
    question = Question(f"q{group}", "Who wrote it?", ("Ada",), "made")
    return Trajectory(
        question, group, 0, 1, (Segment(ids, sampled, logprobs, (0,) * len(logprobs)),), (), StopReason.ANSWERED
    )


def recorded(step: int) -> list[Group]:
    dice = random.Random(f"step {step}")
    return [
        Group(
            Question(f"q{group}", "Who wrote it?", ("Ada",), "made"),
            tuple(episode(dice, group) for _ in range(3)),
            tuple(Score(dice.choice([0.0, 0.25, 1.0]), {}) for _ in range(3)),
        )
        for group in range(3)
    ]


def learner(algorithm: AlgorithmConfig, folder: Path) -> Learner:
    learning, train = policy(0), TrainConfig(learning_rate=1e-3, pack_tokens=64)
    critic = None
    if algorithm.advantage == "gae":
        policy(2).save(folder)
        critic = Critic.load(folder, CPU, torch.float32, CriticConfig(), train)
    optimiser = Optimiser(learning.parameters(), learning_rate=1e-3, weight_decay=0.01)
    reference = policy(1) if algorithm.kl.place != "none" else None
    return Learner(learning, optimiser, algorithm, train, 128, reference, critic)


def bits(ours: Learner) -> str:
    """All weights that were trained."""
    critic = () if ours.critic is None else (*ours.critic.body.parameters(), *ours.critic.head.named_parameters())
    digest = hashlib.sha256()
    for name, each in (*ours.policy.parameters(), *critic):
        digest.update(name.encode() + each.detach().numpy().tobytes())
    return digest.hexdigest()


def run(name: str) -> dict[str, Any]:
    """Losses and norms of each step as the bits they are, and a hash of the weights after the last."""
    algorithm = AlgorithmConfig.model_validate(RUNS[name])
    with TemporaryDirectory() as folder:
        ours = learner(algorithm, Path(folder) / "critic")
        pace = StepRates(1e-3, algorithm.kl.coefficient, critic=1e-3)
        made = [ours.learn(recorded(step), pace, isfinite, recompute=False) for step in range(STEPS)]
    figures = [f"{part}/{figure}" for part in ("policy", "critic") for figure in ("loss", "gradient_norm")]
    kept = {figure: [step[figure].hex() for step in made] for figure in figures if figure in made[0]}
    return {**kept, "weights": bits(ours)}


def every() -> dict[str, Any]:
    torch.set_num_threads(1)
    kind = {"torch": torch.__version__.partition("+")[0], "machine": machine()}
    return {**kind, "runs": {name: run(name) for name in RUNS}}


def apart() -> dict[str, Any]:
    """The runs in a process of their own, with the kernels chosen for it."""
    made = subprocess.run(
        [sys.executable, __file__], env={**os.environ, **KERNELS}, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def machine() -> str:
    """The architecture and the maker of the CPU: MKL and oneDNN choose other kernels for others."""
    cpus = Path("/proc/cpuinfo")
    found = re.search(r"vendor_id\s*:\s*(\w+)", cpus.read_text()) if cpus.exists() else None
    return f"{platform.machine()} {found[1] if found else ''}".strip()


def numbers(runs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, figures in runs.items():
        for figure, steps in figures.items():
            if figure != "weights":
                yield from ((f"{name}, {figure}, step {step}", float.fromhex(each)) for step, each in enumerate(steps))


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def test_losses_are_the_recorded_ones_bit_for_bit(golden: dict[str, Any]) -> None:
    found = apart()
    alike = all(found[name] == golden[name] for name in ("torch", "machine"))
    expected = golden["runs"] if alike else apart()["runs"]
    assert found["runs"] == expected
    assert dict(numbers(found["runs"])) == pytest.approx(dict(numbers(golden["runs"])), rel=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_run_gives_the_same_bits_again(name: str, golden: dict[str, Any]) -> None:
    """With whatever kernels this process has, whose figures are those recorded to four digits."""
    found = run(name)
    assert found == run(name)
    known = {name: golden["runs"][name]}
    assert dict(numbers({name: found})) == pytest.approx(dict(numbers(known)), rel=1e-4)


def test_recorded_runs_are_not_all_alike(golden: dict[str, Any]) -> None:
    assert len({figures["weights"] for figures in golden["runs"].values()}) == len(RUNS)
    assert all(isfinite(value) and value != 0 for _, value in numbers(golden["runs"]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        RECORD.write_text(json.dumps(apart(), indent=2) + "\n")
    else:
        sys.stdout.write(json.dumps(every()))
