"""Engines of runs: servers that are not there, and weights that go to servers once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.config.tree import Config
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.train.engines import Lockstep, embedded, learning, standing
from sleuth.train.publish import Sent

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
    publisher = Sent(engine, lambda: {"head": torch.ones(2)})
    for version in (0, 0, 1, 1, 2, 1):
        publisher.publish(version)
    assert engine.sent == [0, 1, 2, 1]


def test_weights_that_reach_no_server_end_the_run_and_are_not_taken_for_sent() -> None:
    engine = Far()
    publisher = Sent(engine, lambda: {"head": torch.ones(2)})
    engine.breaks = True
    with pytest.raises(TrainingStopped, match="no vLLM server is left; mend what failed and resume the run"):
        publisher.publish(3)
    engine.breaks = False
    publisher.publish(3)
    assert engine.sent == [3]


def config(**engine: Any) -> Config:
    return Config.model_validate({"world": {}, "engine": {"kind": "vllm", **engine}})


def test_an_address_where_nobody_answers_is_one_sentence(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    with pytest.raises(InputError, match=NOWHERE):
        standing(config(url=NOWHERE), tmp_path / "model")
    learner = parts(tmp_path / "run").learner
    with pytest.raises(InputError, match=NOWHERE):
        learning(config(url=NOWHERE), learner, tmp_path)


def test_a_server_of_its_own_that_does_not_start_leaves_a_run_to_resume(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    program.chmod(0o755)
    settings = config(command=f"'{program}' serve --mine", memory=0.5, prefill_tokens=9, weights="device", slots=3)
    with pytest.raises(TrainingStopped, match=r"vllm .*3.* resume"):
        learning(settings, parts(tmp_path / "run").learner, tmp_path)
    said = (tmp_path / "vllm.log").read_text()
    for words in ("--max-num-seqs 3", "--gpu-memory-utilization 0.5", "--max-num-batched-tokens 9"):
        assert words in said
    assert '--weight-transfer-config {"backend": "ipc"} --mine' in said
    with pytest.raises(InputError, match=r"vllm .*3"):
        standing(settings, tmp_path / "model")


SERVER = {"index": "http://127.0.0.1:8000/retrieve"}
FUNCTION = {"index": "import:mine.search"}


@pytest.mark.parametrize(
    ("tables", "device", "holds", "repeats", "concurrent", "reason"),
    [
        ({}, "cpu", True, True, 8, "every tool answers in this process"),
        ({"retrieval": {"index": "index"}}, "cpu", True, True, 8, "every tool answers in this process"),
        ({"retrieval": FUNCTION}, "cpu", True, True, 8, "every tool answers in this process"),
        ({"retrieval": {**SERVER, "replay": "s.jsonl"}}, "cpu", True, True, 8, "every tool answers in this process"),
        ({"retrieval": SERVER}, "cpu", False, False, 32, "searches leave this process: retrieval.index = http://127"),
        ({"retrieval": {"index": "web:serper"}}, "cpu", False, False, 32, "searches leave this process"),
        ({"agent": {"method": "import:mine.run"}}, "cpu", False, False, 8, "agent.method = import:mine.run may depend"),
        ({}, "cuda", False, False, 8, "the engine runs on cuda"),
        ({"retrieval": SERVER}, "cuda", False, False, 32, "the engine runs on cuda"),
        ({"engine": {"kind": "vllm", "slots": 8}}, "cuda", False, False, 8, "engine.kind = vllm"),
        ({"engine": {"lockstep": "off", "slots": 8}}, "cpu", False, False, 8, "engine.lockstep = off"),
        ({"engine": {"lockstep": "on", "slots": 8}}, "cpu", True, True, 8, "engine.lockstep = on"),
        (
            {"engine": {"lockstep": "on", "slots": 8}, "retrieval": SERVER},
            "cpu", True, False, 8, "engine.lockstep = on",
        ),
        ({"retrieval": SERVER, "agent": {"concurrency": 5}}, "cpu", False, False, 5, "searches leave this process"),
    ],
)  # fmt: skip
def test_lockstep_holds_where_every_tool_answers_here(
    tables: dict[str, Any], device: str, holds: bool, repeats: bool, concurrent: int, reason: str
) -> None:
    files: dict[str, str] = {"train": "a.jsonl", "test": "b.jsonl"}
    own = {"corpus": "c.jsonl"} if "retrieval" not in tables else {}
    made = Config.model_validate({"data": files | own, "engine": {"slots": 8}} | tables)
    found = Lockstep.of(made, device)
    assert (found.holds, found.repeats, made.concurrency) == (holds, repeats, concurrent)
    line = found.line(made.concurrency)
    assert f"lockstep {'on' if holds else 'off'} ({reason}" in line
    assert f"{concurrent} episodes in flight" in line
    assert ("may not repeat bit for bit" in line) is not repeats


def test_the_settings_decide_about_lockstep_unless_the_caller_does(policy: Callable[..., Policy]) -> None:
    def waits(setting: str, lockstep: bool | None = None) -> bool:
        engine = {"slots": 2, "lockstep": setting}
        made = Config.model_validate({"world": {}, "agent": {"context_tokens": 60}, "engine": engine})
        return embedded(made, policy(), lockstep=lockstep)._lockstep

    assert waits("auto")
    assert not waits("off")
    assert not waits("auto", lockstep=False)
