"""The cold start in small: phases, folder and repetition; how good it is, is for the recipe to show."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sleuth.model.policy import Policy
from sleuth.sft.demonstrations import BEHAVIOURS
from sleuth.sft.quickstart_policy import PHASES, Plan, cold_start, model

CPU = torch.device("cpu")
PLAN = Plan(
    width=16,
    layers=1,
    heads=2,
    key_heads=1,
    inner=16,
    worlds=1,
    questions=200,
    phases=tuple(replace(phase, steps=2, rows=2, drills=1) for phase in PHASES),
)


@dataclass(frozen=True)
class Start:
    """A cold start with what it told, and the weights it handed over before its last phase."""

    policy: Policy
    told: list[str]
    skilled: dict[str, Tensor]


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in policy.model.named_parameters()}


def started() -> Start:
    told: list[str] = []
    skilled: dict[str, Tensor] = {}

    def keep(policy: Policy) -> None:
        told.append("skilled")
        skilled.update(weights(policy))

    def hear(phase: str, step: int, steps: int, _loss: float) -> None:
        told.append(f"{phase} {step}/{steps}")

    return Start(cold_start(PLAN, CPU, keep, hear), told, skilled)


@pytest.fixture(scope="module")
def start() -> Start:
    return started()


def test_skill_is_handed_over_before_it_is_spoilt(start: Start) -> None:
    *before, last = [[f"{phase.name} {step}/2" for step in (1, 2)] for phase in PHASES]
    assert start.told == [*(line for phase in before for line in phase), "skilled", *last]
    after = weights(start.policy)
    assert any(not torch.equal(start.skilled[name], after[name]) for name in after)


def test_same_seed_gives_the_same_policy(start: Start) -> None:
    again = started().policy
    first, second = weights(start.policy), weights(again)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert start.policy.tokens.tokenizer.get_vocab() == again.tokens.tokenizer.get_vocab()


def test_policy_is_a_folder_that_loads(start: Start, tmp_path: Path) -> None:
    start.policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy", CPU)
    text = "Question: Who?\n<think> yes </think>"
    assert loaded.tokens.encode(text) == start.policy.tokens.encode(text)
    first, second = weights(start.policy), weights(loaded)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_shipped_policy_keeps_to_ten_megabytes() -> None:
    size = sum(each.numel() * each.element_size() for each in model(Plan(), 2500, CPU).parameters())
    assert size < 10e6


def test_phases_draw_from_known_behaviours() -> None:
    for phase in PHASES:
        assert set(phase.behaviours) <= set(BEHAVIOURS)
        assert sum(phase.behaviours.values()) == pytest.approx(1.0)
