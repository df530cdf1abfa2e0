"""Checkpoints: what is saved comes back bit for bit, what is broken or of another model is never loaded silently."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model import lora
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Progress, Saver, restore
from sleuth.train.optimiser import Optimiser

CPU = torch.device("cpu")
PROGRESS = Progress(step=2, seconds=1.5, tokens=300, questions_drawn=16, kl=0.01, best=0.5, score=0.25)
Make = Callable[..., Policy]


def save(
    run: Run, policy: Policy, optimiser: Optimiser, progress: Progress, keep: int, critic: Optimiser | None = None
) -> Path:
    """Write one checkpoint and wait for it."""
    with Saver(run, keep) as saver:
        return saver.save(policy, optimiser, progress, critic)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {})


@pytest.fixture
def make(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Make:
    def made(seed: int = 0, family: str = "llama, grouped heads", dtype: torch.dtype = torch.float32) -> Policy:
        return Policy(nn.Module.to(tiny(family, seed=seed), dtype=dtype), tokens)

    return made


def adapted(policy: Policy, rank: int = 4) -> Policy:
    adapter = LoRA(rank, 8.0, "q_proj,down_proj")
    lora.attach(policy.model, adapter)
    return Policy(policy.model, policy.tokens, adapter)


def trained(policy: Policy, steps: int = 2) -> Optimiser:
    """The optimiser after some steps on the policy, whose gradients are drawn anew for each."""
    optimiser = Optimiser(policy.parameters(), learning_rate=1e-2, weight_decay=0.01)
    for step in range(steps):
        move(policy, optimiser, seed=step)
    return optimiser


def move(policy: Policy, optimiser: Optimiser, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    optimiser.zero()
    terms = [(each * torch.randn(each.shape, generator=dice).to(each.dtype)).sum() for _, each in policy.parameters()]
    torch.stack(terms).sum().backward()
    optimiser.step(1e-2, 1.0)


def state(policy: Policy, optimiser: Optimiser) -> dict[str, Tensor]:
    weights = {f"weight.{name}": each for name, each in policy.model.state_dict().items()}
    return {name: each.clone() for name, each in {**weights, **optimiser.state()}.items()}


def identical(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_optimiser_come_back_bit_for_bit(run: Run, make: Make, dtype: torch.dtype) -> None:
    first, second = make(0, dtype=dtype), make(1, dtype=dtype)
    optimiser, other = trained(first), trained(second, steps=1)
    folder = save(run, first, optimiser, PROGRESS, keep=1)
    assert folder == run.latest()
    assert restore(folder, second, other) == PROGRESS
    assert identical(state(first, optimiser), state(second, other))
    assert ("master.model.norm.weight" in state(second, other)) == (dtype is torch.bfloat16)
    move(first, optimiser, seed=7)
    move(second, other, seed=7)
    assert identical(state(first, optimiser), state(second, other))


def test_checkpoint_goes_on_in_the_other_precision(run: Run, make: Make) -> None:
    """The masters of one are the weights of the other."""
    singles, halves, again = make(0), make(1, dtype=torch.bfloat16), make(2)
    optimiser, other, third = trained(singles), trained(halves), trained(again)
    restore(save(run, singles, optimiser, PROGRESS, keep=1), halves, other)
    restore(save(run, halves, other, PROGRESS, keep=1), again, third)
    assert identical(state(singles, optimiser), state(again, third))


def test_random_states_come_back(run: Run, make: Make) -> None:
    ours = make()
    optimiser = trained(ours)
    folder = save(run, ours, optimiser, PROGRESS, keep=1)
    expected = torch.rand(3), random.random()
    torch.rand(5)
    restore(folder, ours, optimiser)
    found = torch.rand(3), random.random()
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_checkpoint_before_any_update_has_no_moments(run: Run, make: Make) -> None:
    """Steps without any advantage leave the optimiser as it began."""
    first, second = make(0), make(1)
    begun = trained(first, steps=0)
    folder = save(run, first, begun, PROGRESS, keep=1)
    other = trained(second)
    restore(folder, second, other)
    assert identical(state(first, begun), state(second, other))
    assert other.state() == {}
    move(second, other, seed=0)


def test_critic_comes_back_with_its_weights(run: Run, make: Make) -> None:
    ours = make()
    optimiser = trained(ours)
    bodies = [make(seed) for seed in (5, 6)]
    critic, other = trained(bodies[0]), trained(bodies[1])
    folder = save(run, ours, optimiser, PROGRESS, keep=1, critic=critic)
    restore(folder, ours, optimiser, critic=other)
    assert identical(state(bodies[0], critic), state(bodies[1], other))
    with pytest.raises(InputError, match=r"critic.* none"):
        restore(folder, ours, optimiser)
    plain = save(run, ours, optimiser, replace(PROGRESS, step=3), keep=1)
    with pytest.raises(InputError, match=r"no critic"):
        restore(plain, ours, optimiser, critic=other)


@pytest.mark.parametrize("family", ["llama", "llama, grouped heads"])
def test_stock_transformers_load_a_checkpoint(run: Run, make: Make, family: str) -> None:
    ours = make(family=family)
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    text = "Who wrote the book?"
    ids = tokenizer(text)["input_ids"]
    assert ids == ours.tokens.encode(text)
    reloaded = Policy.load(folder, CPU)
    assert torch.equal(logits(model, ids), logits(ours.model, ids))
    assert torch.equal(logits(reloaded.model, ids), logits(ours.model, ids))


@torch.no_grad()
def logits(model: nn.Module, ids: list[int]) -> Tensor:
    if isinstance(model, PreTrainedModel):
        model.set_attn_implementation("eager")
    found: Tensor = model(input_ids=torch.tensor([ids])).logits
    return found


def test_adapter_is_saved_merged_and_apart_and_comes_back(run: Run, make: Make, tmp_path: Path) -> None:
    first, second = adapted(make(0)), adapted(make(0))
    make(0).save(tmp_path / "begun")
    optimiser, other = trained(first, steps=4), trained(second, steps=1)
    folder = save(run, first, optimiser, PROGRESS, keep=1)
    ids = first.tokens.encode("Who wrote the book?")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert "lora" not in " ".join(name for name, _ in plain.named_parameters())
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "begun")
    before = logits(base, ids)
    by_peft = PeftModel.from_pretrained(base, folder / lora.FOLDER)
    assert not torch.allclose(logits(first.model, ids), before, atol=1e-2)
    assert torch.allclose(logits(plain, ids), logits(first.model, ids), atol=1e-4)
    assert torch.equal(logits(by_peft, ids), logits(first.model, ids))
    restore(folder, second, other)
    assert identical(state(first, optimiser), state(second, other))


def test_only_the_newest_are_kept(run: Run, make: Make) -> None:
    ours = make()
    optimiser = trained(ours)
    for step in (2, 4, 10):
        save(run, ours, optimiser, Progress(step), keep=2)
    assert [path.name for path in run.checkpoints()] == ["step-4", "step-10"]


def test_the_best_is_kept_too(run: Run, make: Make) -> None:
    ours = make()
    optimiser = trained(ours)
    for step, score in ((2, 0.3), (4, 0.5), (6, None), (8, 0.5), (10, 0.4)):
        save(run, ours, optimiser, Progress(step, score=score), keep=1)
    assert [path.name for path in run.checkpoints()] == ["step-4", "step-10"]
    assert run.best() == run.checkpoint(4)
    assert json.loads((run.path / "best.json").read_text()) == {"step": 4, "score": 0.5}


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "weights cut short": lambda folder: _cut(folder / "model.safetensors"),
    "moments cut short": lambda folder: _cut(folder / "trainer" / "__0_0.distcp"),
    "list of moments cut short": lambda folder: _cut(folder / "trainer" / ".metadata"),
    "moments missing": lambda folder: (folder / "trainer" / "__0_0.distcp").unlink(),
    "list of moments missing": lambda folder: (folder / "trainer" / ".metadata").unlink(),
    "progress missing": lambda folder: (folder / "trainer" / "progress.json").unlink(),
    "progress cut short": lambda folder: _cut(folder / "trainer" / "progress.json"),
    "progress of another kind": lambda folder: (folder / "trainer" / "progress.json").write_text('{"epoch": 3}'),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_broken_checkpoint_is_named_and_changes_nothing(
    breakage: Callable[[Path], object], run: Run, make: Make
) -> None:
    first, second = make(0), make(1)
    folder = save(run, first, trained(first), PROGRESS, keep=1)
    breakage(folder)
    other = trained(second)
    before = state(second, other)
    with pytest.raises(InputError, match=r"the checkpoint .*step-2 cannot be read .*; remove it to resume from the"):
        restore(folder, second, other)
    assert identical(before, state(second, other))


def _rewritten(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return rewrite


def _spoil_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"Ġwrote"', '"Ġread"'))


OTHERS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another shape": (
        "qwen3",
        Path.exists,
        r"self_attn.q_proj.weight has the shape \(64, 32\), expected \(32, 32\)",
    ),
    "a weight too many": (
        "llama, grouped heads",
        _rewritten(lambda weights: weights.update({"bias": torch.zeros(1)})),
        "it has bias",
    ),
    "a weight too few": (
        "llama, grouped heads",
        _rewritten(lambda weights: weights.pop("model.norm.weight")),
        "it has no model.norm.weight",
    ),
    "other tokens": ("llama, grouped heads", _spoil_tokenizer, "its tokenizer has"),
}


@pytest.mark.parametrize(("family", "change", "difference"), OTHERS.values(), ids=OTHERS)
def test_checkpoint_of_another_model_is_refused(
    run: Run, make: Make, family: str, change: Callable[[Path], object], difference: str
) -> None:
    theirs, ours = make(family=family), make()
    folder = save(run, theirs, trained(theirs), PROGRESS, keep=1)
    change(folder)
    optimiser = trained(ours)
    before = state(ours, optimiser)
    with pytest.raises(InputError, match=f"step-2 .*{difference}"):
        restore(folder, ours, optimiser)
    assert identical(before, state(ours, optimiser))


def test_adapter_of_another_rank_is_refused(run: Run, make: Make) -> None:
    theirs, ours = adapted(make(), rank=2), adapted(make(), rank=4)
    folder = save(run, theirs, trained(theirs), PROGRESS, keep=1)
    with pytest.raises(InputError, match=r"lora_A.default.weight has the shape \(2, 32\), expected \(4, 32\)"):
        restore(folder, ours, trained(ours))


def test_renamed_checkpoint_is_refused(run: Run, make: Make) -> None:
    ours = make()
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    with pytest.raises(InputError, match=r"step 2\b"):
        restore(folder.rename(run.checkpoint(20)), ours, trained(ours))


def test_half_written_checkpoint_is_never_the_latest(run: Run, make: Make) -> None:
    ours = make()
    folder = save(run, ours, trained(ours), PROGRESS, keep=1)
    half = run.path / "checkpoints" / ".tmp-step-9"
    (half / "trainer").mkdir(parents=True)
    (half / "trainer" / "progress.json").write_text(json.dumps({"step": 9, "seconds": 0.0, "tokens": 0}))
    assert run.latest() == folder
    with run.lock():
        assert run.latest() == folder
    assert not half.exists()
