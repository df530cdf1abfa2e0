"""Publishing: weights are sent to servers once per version, and failures are reported in one sentence."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.config.tree import Config
from sleuth.engines.build import load_engine
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.train.publish import SentWeights, build_engine

NOWHERE = "http://127.0.0.1:9"


class Far(ScriptedEngine):
    """An engine that counts what it is sent, and may not get it."""

    def __init__(self) -> None:
        super().__init__(lambda _ids: [])
        self.sent: list[int] = []
        self.breaks = False

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        if self.breaks:
            raise EngineFailure("no vLLM server is left")
        assert weights is not None
        self.sent.append(version)


def test_weights_go_to_servers_once_for_each_version() -> None:
    engine = Far()
    publisher = SentWeights(engine, lambda: {"head": torch.ones(2)})
    for version in (0, 0, 1, 1, 2, 1):
        publisher.publish(version)
    assert engine.sent == [0, 1, 2, 1]


def test_weights_that_reach_no_server_end_the_run_and_are_not_taken_for_sent() -> None:
    engine = Far()
    publisher = SentWeights(engine, lambda: {"head": torch.ones(2)})
    engine.breaks = True
    with pytest.raises(TrainingStopped, match=r"no vLLM server is left; .*resume the run"):
        publisher.publish(3)
    engine.breaks = False
    publisher.publish(3)
    assert engine.sent == [3]


def config(**engine: Any) -> Config:
    return Config.model_validate({"world": {}, "engine": {"kind": "vllm"} | engine})


def test_an_address_where_nobody_answers_is_one_sentence(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    with pytest.raises(InputError, match=NOWHERE):
        load_engine(config(url=NOWHERE), tmp_path / "model")
    learner = parts(tmp_path / "run").learner
    with pytest.raises(InputError, match=NOWHERE):
        build_engine(config(url=NOWHERE), learner, tmp_path)


def test_an_sglang_server_of_its_own_gets_the_settings(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    program.chmod(0o755)
    command = f"'{program}' -m sglang.launch_server --mine"
    settings = config(kind="sglang", command=command, memory=0.5, prefill_tokens=9, weights="collective", slots=3)
    with pytest.raises(TrainingStopped, match=r"python .*3.* resume"):
        build_engine(settings, parts(tmp_path / "run").learner, tmp_path)
    said = (tmp_path / "sglang.log").read_text()
    for words in ("--max-running-requests 3", "--mem-fraction-static 0.5", "--chunked-prefill-size 9"):
        assert words in said
    assert said.rstrip().endswith("--mine")


def test_a_server_of_its_own_that_does_not_start_leaves_a_run_to_resume(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    program.chmod(0o755)
    settings = config(command=f"'{program}' serve --mine", memory=0.5, prefill_tokens=9, weights="device", slots=3)
    with pytest.raises(TrainingStopped, match=r"vllm .*3.* resume"):
        build_engine(settings, parts(tmp_path / "run").learner, tmp_path)
    said = (tmp_path / "vllm.log").read_text()
    for words in ("--max-num-seqs 3", "--gpu-memory-utilization 0.5", "--max-num-batched-tokens 9"):
        assert words in said
    assert '--weight-transfer-config {"backend": "ipc"}' in said
    assert said.rstrip().endswith("--mine")
    with pytest.raises(InputError, match=r"vllm .*3"):
        load_engine(settings, tmp_path / "model")
