"""Engines built from a config: when lockstep is on, and whether a run is repeatable."""

from collections.abc import Callable
from typing import Any

import pytest

from sleuth.config.tree import Config
from sleuth.engines.build import Lockstep, embed_policy
from sleuth.model.policy import Policy

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
        ({"agent": {"method": "import:mine.run"}}, "cpu", False, False, 8, "agent.method = import:mine.run"),
        ({}, "cuda", False, False, 8, "the engine runs on cuda"),
        ({"retrieval": SERVER}, "cuda", False, False, 32, "the engine runs on cuda"),
        ({"engine": {"kind": "vllm", "slots": 8}}, "cuda", False, False, 8, "engine.kind = vllm"),
        ({"engine": {"kind": "sglang", "slots": 8}}, "cuda", False, False, 8, "engine.kind = sglang"),
        ({"engine": {"lockstep": "off", "slots": 8}}, "cpu", False, False, 8, "engine.lockstep = off"),
        ({"engine": {"lockstep": "on", "slots": 8}}, "cpu", True, True, 8, "engine.lockstep = on"),
        (
            {"engine": {"lockstep": "on", "slots": 8}, "retrieval": SERVER},
            "cpu", True, False, 8, "engine.lockstep = on",
        ),
        (
            {"train": {"mode": "async"}, "algorithm": {"correction": {"level": "token"}}},
            "cpu", False, False, 8, "train.mode = async",
        ),
        ({"train": {"mode": "async", "staleness": 0}}, "cpu", True, True, 8, "every tool answers in this process"),
        ({"retrieval": SERVER, "agent": {"concurrency": 5}}, "cpu", False, False, 5, "searches leave this process"),
    ],
)  # fmt: skip
def test_lockstep_holds_where_every_tool_answers_here(
    tables: dict[str, Any], device: str, holds: bool, repeats: bool, concurrent: int, reason: str
) -> None:
    files: dict[str, str] = {"train": "a.jsonl", "test": "b.jsonl"}
    own = {"corpus": "c.jsonl"} if "retrieval" not in tables else {}
    made = Config.model_validate({"data": files | own, "engine": {"slots": 8}} | tables)
    found = Lockstep.resolve(made, device)
    assert (found.enabled, found.repeatable, made.concurrency) == (holds, repeats, concurrent)
    line = found.line(made.concurrency)
    assert f"lockstep {'on' if holds else 'off'} ({reason}" in line
    assert f"{concurrent} episodes in flight" in line
    assert ("may not be repeatable bit for bit" in line) is not repeats


def test_the_settings_decide_about_lockstep_unless_the_caller_does(policy: Callable[..., Policy]) -> None:
    def waits(setting: str, lockstep: bool | None = None) -> bool:
        engine = {"slots": 2, "lockstep": setting}
        made = Config.model_validate({"world": {}, "agent": {"context_tokens": 60}, "engine": engine})
        return embed_policy(made, policy(), lockstep=lockstep)._lockstep

    assert waits("auto")
    assert not waits("off")
    assert not waits("auto", lockstep=False)
