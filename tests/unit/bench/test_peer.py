"""The process of a peer: what it is told, what it answers, and how it may end."""

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from transformers import LlamaConfig

from sleuth.bench import peer
from sleuth.bench.workloads import Turn
from sleuth.errors import EngineFailure, InputError

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


def test_it_is_told_episodes_and_answers_how_long_they_took(stand_in: Path) -> None:
    with peer.opened(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        assert vllm.version == "0.0-1"
        assert 0 < vllm.seconds([(Turn((1, 2), 3),), (Turn((1, 2), 3),)]) < 10


def test_an_episode_goes_on_as_soon_as_its_turn_is_done(stand_in: Path) -> None:
    episodes = [(Turn((number, 7), 2), Turn((9,), 1)) for number in range(2)]
    with peer.opened(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        assert vllm.seconds(episodes) > 0
        lines = vllm.printed()
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


def test_an_absent_peer_is_none() -> None:
    with peer.opened(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is None


def test_a_peer_that_dies_at_its_start_says_why(python: Callable[[str], str]) -> None:
    dying = python("echo first >&2; echo 'no GPU is left' >&2; exit 3")
    with pytest.raises(EngineFailure, match=r"(?s)ended with code 3.*no GPU is left"):
        peer.opened(LlamaConfig(), SETTINGS, dying).__enter__()


def test_a_peer_that_dies_at_work_says_why(stand_in: Path) -> None:
    with peer.opened(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        with pytest.raises(EngineFailure, match=r"(?s)ended with code 1.*out of luck"):
            vllm.seconds([(Turn((13,), 2),)])


def test_a_peer_that_samples_too_little_is_not_believed(stand_in: Path) -> None:
    with peer.opened(LlamaConfig(), SETTINGS, sys.executable) as vllm:
        assert vllm is not None
        with pytest.raises(EngineFailure, match="sampled 1 tokens, 2 were asked for"):
            vllm.seconds([(Turn((14,), 2),)])


def test_what_a_dead_peer_started_is_ended_with_it(python: Callable[[str], str], tmp_path: Path) -> None:
    """A child that holds the pipe open delays nothing, and is gone afterwards."""
    dying = python(f"sleep 60 & echo $! > {tmp_path}/child; exit 4")
    with pytest.raises(EngineFailure, match=r"ended with code 4.*\nnothing"):
        peer.opened(LlamaConfig(), SETTINGS, dying).__enter__()
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


def test_a_python_that_is_none_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        peer.opened(LlamaConfig(), SETTINGS, str(tmp_path / "nothing")).__enter__()
