"""Generation speed: our engine and vLLM play the same episodes, and failures of vLLM are reported."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from sleuth.bench.generation import (
    Comparison,
    Peer,
    Rates,
    Row,
    Theirs,
    best_settings,
    compare,
    open_embedded,
    open_vllm,
    table,
)
from sleuth.bench.models import random_model
from sleuth.bench.workloads import Job, Sizes, Turn, Workload, jobs
from sleuth.errors import EngineFailure, InputError

SIZES = Sizes(group=2, prompt=9, new=4, observation=5)
JOBS = jobs(list(Workload), [3], SIZES)


@pytest.fixture(scope="module")
def shape() -> PretrainedConfig:
    """Small, and with so few tokens that one that ends a text would be sampled soon."""
    return LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=[0, 1, 2, 3],
        architectures=["LlamaForCausalLM"],
    )


def played(shape: PretrainedConfig, asked: Sequence[Job], peer: Peer | None) -> tuple[Comparison, list[str]]:
    logged: list[str] = []
    found = compare("small", shape, asked, repetitions=2, peer=peer, settings={}, log=logged.append)
    return found, logged


def test_ours_alone(shape: PretrainedConfig) -> None:
    found, logged = played(shape, JOBS, None)
    assert [row.job for row in found.rows] == JOBS
    for row in found.rows:
        assert row.ours.sampled == row.job.sampled
        assert len(row.ours.seconds) == 2
        assert all(0 < seconds < 60 for seconds in row.ours.seconds)
        assert (row.theirs, row.ratio) == ("not requested", "-")
    assert logged[0].startswith("small, single, 3 concurrent, ours: ")


def test_missing_vllm_is_reported_in_its_row(shape: PretrainedConfig) -> None:
    found, _ = played(shape, JOBS[:1], Peer(sys.executable))
    assert [row.theirs for row in found.rows] == ["not installed"]
    assert found.theirs == Theirs(absence="not installed")


def test_crashed_vllm_keeps_our_results_and_its_reason(shape: PretrainedConfig, tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'no GPU is left' >&2\nexit 3\n")
    dying.chmod(0o755)
    found, logged = played(shape, JOBS[:1], Peer(str(dying), {"block_size": 32}))
    assert [row.theirs for row in found.rows] == ["failed"]
    assert found.rows[0].ours.best > 0
    assert "no GPU is left" in found.theirs.failure
    assert logged[0] == found.theirs.failure
    assert found.theirs.settings == {**best_settings(3, 13 + 16), "block_size": 32}


def test_weights_are_random_finite_and_never_end_a_text(shape: PretrainedConfig) -> None:
    model = random_model(shape, torch.device("cpu"))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id is None
    assert next(model.parameters()).dtype == torch.float32


def test_too_few_sampled_tokens_are_an_error(shape: PretrainedConfig) -> None:
    with (
        open_embedded(shape, 1, 12, torch.device("cpu"), {}) as ours,
        pytest.raises(EngineFailure, match="3 tokens were sampled, expected 5"),
    ):
        ours.seconds([(Turn((1,) * 9, 5),)])


def test_closed_engine_says_so(shape: PretrainedConfig) -> None:
    with open_embedded(shape, 1, 32, torch.device("cpu"), {}) as ours:
        assert ours.seconds([(Turn((1, 2), 3),)]) > 0
    with pytest.raises(EngineFailure, match="closed"):
        ours.seconds([(Turn((1, 2), 3),)])


def test_table_shows_best_and_spread() -> None:
    job = Job(Workload.GROUPS, 2, SIZES)
    rows = [
        Row("a", job, Rates(8, (0.5, 0.4, 0.8)), Rates(8, (1.6, 2.0))),
        Row("b", job, Rates(8, (0.5,)), "failed"),
    ]
    assert table(rows, "as asked", 3).markdown().splitlines() == [
        "**Sampled tokens per second, as asked, random weights, logprobs on, best of 3**",
        "",
        "| shape | workload | concurrent | ours | spread | vLLM | spread | times as fast |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| a | groups | 2 | 20 | 50.0% | 5 | 20.0% | 4 |",
        "| b | groups | 2 | 16 | 0.0% | failed | - | - |",
    ]


def test_vllm_gets_graphs_for_every_batch() -> None:
    assert best_settings(1024, 500)["max_cudagraph_capture_size"] == 1024
    assert best_settings(64, 500)["max_cudagraph_capture_size"] == 512


SETTINGS = {"max_num_seqs": 4}

# Stands where vLLM would: odd requests take two steps, even ones one, and a token is the length of what precedes it.
STAND_IN = """
import os, sys
__version__ = "0.0-" + str(os.environ["HF_HUB_OFFLINE"])
print("noise on standard output")

class SamplingParams:
    def __init__(self, max_tokens, temperature, ignore_eos, logprobs, detokenize, output_kind):
        self.max_tokens = max_tokens

class Output:
    finished = True
    def __init__(self, number, prompt, count):
        self.request_id, self.outputs = number, [self]
        self.token_ids = [len(prompt) + offset for offset in range(count)]

class Core:
    def __init__(self): self.asked, self.log = [], []
    def has_unfinished_requests(self): return bool(self.asked)
    def add_request(self, number, prompt, sampling):
        episode = int(number.partition("-")[0])
        print("asked", episode, prompt["prompt_token_ids"], file=sys.stderr, flush=True)
        self.asked.append([1 + episode % 2, Output(number, prompt["prompt_token_ids"], sampling.max_tokens)])
    def step(self):
        print("asked to step", file=sys.stderr, flush=True)
        for request in self.asked: request[0] -= 1
        done = [output for left, output in self.asked if not left]
        self.asked = [request for request in self.asked if request[0]]
        return done

class LLM:
    def __init__(self, folder, max_num_seqs):
        assert max_num_seqs == 4 and os.path.exists(folder + "/config.json")
        self.llm_engine = Core()
    def generate(self, prompts, samplings, use_tqdm):
        if prompts[0]["prompt_token_ids"] == [13]: sys.exit("out of luck")
        if prompts[0]["prompt_token_ids"] == [14]: samplings[0].max_tokens -= 1
        return [Output("0", prompt["prompt_token_ids"], each.max_tokens) for prompt, each in zip(prompts, samplings)]
"""
KINDS = "class RequestOutputKind:\n    FINAL_ONLY = 2\n"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "lib" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "sampling_params.py").write_text(KINDS)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """Makes an executable that is started as a Python would be."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_vllm_plays_episodes(stand_in: Path) -> None:
    with open_vllm(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        assert vllm.version == "0.0-1"
        assert 0 < vllm.seconds([(Turn((1, 2), 3),), (Turn((1, 2), 3),)]) < 10


def test_next_turn_is_submitted_immediately(stand_in: Path) -> None:
    episodes = [(Turn((number, 7), 2), Turn((9,), 1)) for number in range(2)]
    with open_vllm(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        assert vllm.seconds(episodes) > 0
        lines = vllm.output()
    assert [line for line in lines if line.startswith("asked")] == [
        "asked 0 [0, 7]",
        "asked 1 [1, 7]",
        "asked to step",
        "asked 0 [0, 7, 2, 3, 9]",
        "asked to step",
        "asked 1 [1, 7, 2, 3, 9]",
        "asked to step",
        "asked to step",
    ]
    assert "noise on standard output" in lines


def test_missing_vllm_is_none() -> None:
    with open_vllm(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is None


def test_crash_at_startup_is_reported(python: Callable[[str], str]) -> None:
    dying = python("echo first >&2; echo 'no GPU is left' >&2; exit 3")
    with pytest.raises(EngineFailure, match=r"(?s)exited with code 3.*no GPU is left"):
        open_vllm(LlamaConfig(), SETTINGS, dying).__enter__()


def test_crash_while_generating_is_reported(stand_in: Path) -> None:
    with open_vllm(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        with pytest.raises(EngineFailure, match=r"(?s)exited with code 1.*out of luck"):
            vllm.seconds([(Turn((13,), 2),)])


def test_vllm_with_too_few_tokens_is_an_error(stand_in: Path) -> None:
    with open_vllm(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        with pytest.raises(EngineFailure, match="sampled 1 tokens, expected 2"):
            vllm.seconds([(Turn((14,), 2),)])


def test_children_of_a_crashed_vllm_are_killed(python: Callable[[str], str], tmp_path: Path) -> None:
    """A child that holds the pipe open delays nothing, and is gone afterwards."""
    dying = python(f"sleep 60 & echo $! > {tmp_path}/child; exit 4")
    with pytest.raises(EngineFailure, match=r"exited with code 4.*\nnone"):
        open_vllm(LlamaConfig(), SETTINGS, dying).__enter__()
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    end = monotonic() + 10
    while _lives(state):
        assert monotonic() < end
        sleep(0.01)


def _lives(state: Path) -> bool:
    try:
        return state.read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_invalid_python_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        open_vllm(LlamaConfig(), SETTINGS, str(tmp_path / "nothing")).__enter__()
