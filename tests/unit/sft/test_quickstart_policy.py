"""The quickstart's cold start at small scale, and its tokenizer."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.sft.demonstrations import BEHAVIOURS
from sleuth.sft.dialects import DIALECTS
from sleuth.sft.quickstart_policy import PHASES, Plan, build_model, build_tokenizer, cold_start

CPU = torch.device("cpu")
PAD, END = DIALECTS["tags"].special
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
    """A cold start with its progress, and the weights before its last phase."""

    policy: Policy
    progress: list[str]
    skilled: dict[str, Tensor]


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in policy.model.named_parameters()}


def started() -> Start:
    progress: list[str] = []
    skilled: dict[str, Tensor] = {}

    def keep(policy: Policy) -> None:
        progress.append("skilled")
        skilled.update(weights(policy))

    def report(phase: str, step: int, steps: int, _loss: float) -> None:
        progress.append(f"{phase} {step}/{steps}")

    return Start(cold_start(PLAN, CPU, keep, report), progress, skilled)


@pytest.fixture(scope="module")
def start() -> Start:
    return started()


def test_policy_is_handed_over_before_the_last_phase(start: Start) -> None:
    *before, last = [[f"{phase.name} {step}/2" for step in (1, 2)] for phase in PHASES]
    assert start.progress == [*(line for phase in before for line in phase), "skilled", *last]
    after = weights(start.policy)
    assert any(not torch.equal(start.skilled[name], after[name]) for name in after)


def test_same_seed_same_policy(start: Start) -> None:
    again = started().policy
    first, second = weights(start.policy), weights(again)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert start.policy.tokens.tokenizer.get_vocab() == again.tokens.tokenizer.get_vocab()


def test_saved_policy_loads(start: Start, tmp_path: Path) -> None:
    start.policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy", CPU)
    text = "Question: Who?\n<think> yes </think>"
    assert loaded.tokens.encode(text) == start.policy.tokens.encode(text)
    first, second = weights(start.policy), weights(loaded)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_shipped_policy_is_below_ten_megabytes() -> None:
    size = sum(each.numel() * each.element_size() for each in build_model(Plan(), 2500, CPU).parameters())
    assert size < 10e6


def test_phases_use_known_behaviours() -> None:
    for phase in PHASES:
        assert set(phase.behaviours) <= set(BEHAVIOURS)
        assert sum(phase.behaviours.values()) == pytest.approx(1.0)


TEXTS = ["Question: Who founded Umbra Trust?\n", "<think> It was 1962. </think> <search> Umbra </search>"]


@pytest.fixture(scope="module")
def known() -> Tokens:
    return Tokens(build_tokenizer(TEXTS))


@pytest.mark.parametrize("text", [" Umbra Trust", " Umbra", " 1962", " </search>", "Question: Who"])
def test_known_words_are_one_token(text: str, known: Tokens) -> None:
    pieces = [known.decode([token]) for token in known.encode(text)]
    assert "".join(pieces) == text
    assert all(len(piece.split()) == 1 for piece in pieces)
    assert len(pieces) <= len(text.split()) + text.count(":")


@pytest.mark.parametrize(
    "text",
    ["", "Zanzibar", "naïve — 東京 🜁", "a\n\n\tb", "1962x", "<unknown>", f"{END}{PAD}", " double  space ", "x" * 300],
)
def test_any_text_round_trips(text: str, known: Tokens) -> None:
    assert known.decode(known.encode(text)) == text


def test_special_tokens(known: Tokens) -> None:
    assert known.eos_id == known.tokenizer.convert_tokens_to_ids(END) == 1
    assert known.tokenizer.pad_token_id == known.tokenizer.convert_tokens_to_ids(PAD) == 0
    assert known.eos_id not in known.encode(END)


def test_vocabulary_is_sorted(known: Tokens) -> None:
    numbers = known.tokenizer.get_vocab()
    words = sorted(numbers, key=numbers.__getitem__)[2 + 256 :]
    assert len(words) > 10
    assert words == sorted(words)
    assert build_tokenizer(TEXTS[::-1]).get_vocab() == numbers
