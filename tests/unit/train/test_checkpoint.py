"""Checkpoints: what is saved comes back bit for bit, what is broken is never loaded silently."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer

from sleuth.errors import InputError
from sleuth.runs import Run
from sleuth.train.checkpoint import Progress, restore, save
from sleuth.train.policy import Policy

PROGRESS = Progress(step=2, seconds=1.5, tokens=300)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {})


def trained(policy: Policy, steps: int = 2) -> AdamW:
    """The optimiser after some steps on the policy, whose gradients are drawn anew for each."""
    optimiser = AdamW(policy.model.parameters(), lr=1e-2)
    for step in range(steps):
        move(policy, optimiser, seed=step)
    return optimiser


def move(policy: Policy, optimiser: AdamW, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    for parameter in policy.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=dice)
    optimiser.step()


def state(policy: Policy, optimiser: AdamW) -> dict[str, Tensor]:
    found = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    for name, parameter in policy.model.named_parameters():
        found |= {f"{kind} of {name}": each.clone() for kind, each in optimiser.state[parameter].items()}
    return found


def identical(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_weights_and_optimiser_come_back_bit_for_bit(run: Run, policy: Callable[..., Policy]) -> None:
    first, second = policy(0), policy(1)
    optimiser = trained(first)
    folder = save(run, first, optimiser, PROGRESS, keep=1)
    assert folder == run.latest()
    other = trained(second, steps=1)
    assert restore(folder, second, other) == PROGRESS
    assert identical(state(first, optimiser), state(second, other))
    assert len(state(second, other)) == 4 * len(list(second.model.parameters()))
    move(first, optimiser, seed=7)
    move(second, other, seed=7)
    assert identical(state(first, optimiser), state(second, other))


def test_checkpoint_before_any_update_has_no_moments(run: Run, policy: Callable[..., Policy]) -> None:
    """Steps without any advantage leave the optimiser as it began."""
    first, second = policy(0), policy(1)
    folder = save(run, first, AdamW(first.model.parameters()), PROGRESS, keep=1)
    other = trained(second)
    restore(folder, second, other)
    assert identical(state(first, AdamW(first.model.parameters())), state(second, other))
    move(second, other, seed=0)


def test_stock_transformers_load_a_checkpoint(run: Run, policy: Callable[..., Policy]) -> None:
    ours = policy()
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    text = "Who wrote the book?"
    ids = tokenizer(text)["input_ids"]
    assert ids == ours.tokens.encode(text)
    reloaded = Policy.load(folder, torch.device("cpu"))
    reloaded.model.set_attn_implementation("eager")
    ours.model.set_attn_implementation("eager")
    with torch.no_grad():
        logits, again, before = (
            each(input_ids=torch.tensor([ids])).logits for each in (model, reloaded.model, ours.model)
        )
    assert torch.equal(logits, before)
    assert torch.equal(again, before)


def test_only_the_newest_are_kept(run: Run, policy: Callable[..., Policy]) -> None:
    ours = policy()
    optimiser = trained(ours)
    for step in (2, 4, 10):
        save(run, ours, optimiser, Progress(step, 0.0, 0), keep=2)
    assert [path.name for path in run.checkpoints()] == ["step-4", "step-10"]


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "weights cut short": lambda folder: _cut(folder / "model.safetensors"),
    "moments cut short": lambda folder: _cut(folder / "trainer" / "optimiser.safetensors"),
    "weights missing": lambda folder: (folder / "model.safetensors").unlink(),
    "moments missing": lambda folder: (folder / "trainer" / "optimiser.safetensors").unlink(),
    "progress missing": lambda folder: (folder / "trainer" / "progress.json").unlink(),
    "progress cut short": lambda folder: _cut(folder / "trainer" / "progress.json"),
    "progress of another kind": lambda folder: (folder / "trainer" / "progress.json").write_text('{"epoch": 3}'),
    "weights of another model": lambda folder: save_file({"x": torch.zeros(1)}, folder / "model.safetensors"),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_broken_checkpoint_is_named_and_changes_nothing(
    breakage: Callable[[Path], object], run: Run, policy: Callable[..., Policy]
) -> None:
    first, second = policy(0), policy(1)
    folder = save(run, first, trained(first), PROGRESS, keep=1)
    breakage(folder)
    other = trained(second)
    before = state(second, other)
    with pytest.raises(InputError, match=r"the checkpoint .*step-2 cannot be read .*; remove it to resume from the"):
        restore(folder, second, other)
    assert identical(before, state(second, other))


def test_renamed_checkpoint_is_refused(run: Run, policy: Callable[..., Policy]) -> None:
    ours = policy()
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    with pytest.raises(InputError, match="holds step 2; it was renamed"):
        restore(folder.rename(run.checkpoint(20)), ours, trained(ours))


def test_half_written_checkpoint_is_never_the_latest(run: Run, policy: Callable[..., Policy]) -> None:
    ours = policy()
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    half = run.path / "checkpoints" / ".tmp-step-9"
    (half / "trainer").mkdir(parents=True)
    (half / "trainer" / "progress.json").write_text(json.dumps({"step": 9, "seconds": 0.0, "tokens": 0}))
    assert run.latest() == folder
    with run.held():
        assert run.latest() == folder
    assert not half.exists()
