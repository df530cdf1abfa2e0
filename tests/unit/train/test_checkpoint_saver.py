"""Saving in the background: what training does meanwhile never reaches the file, and no failure is lost."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.errors import InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Progress, Saver, restore
from sleuth.train.optimiser import Optimiser

Make = Callable[..., Policy]
RATE = 1e-2


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", {})


@pytest.fixture
def make(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Make:
    return lambda seed=0: Policy(tiny(seed=seed), tokens)


def begun(policy: Policy) -> Optimiser:
    return Optimiser(policy.parameters(), learning_rate=RATE, weight_decay=0.01)


def move(policy: Policy, optimiser: Optimiser, seed: int) -> None:
    optimiser.zero()
    for _, each in policy.parameters():
        (each * (seed + 1)).square().sum().backward()
    optimiser.step(RATE, 1.0)


def whole(policy: Policy, optimiser: Optimiser) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in {**dict(policy.parameters()), **optimiser.state()}.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_what_comes_after_save_is_not_in_the_file(run: Run, make: Make) -> None:
    ours, other = make(0), make(1)
    optimiser = begun(ours)
    move(ours, optimiser, 0)
    saved = whole(ours, optimiser)
    with Saver(run, keep=1) as saver:
        folder = saver.save(ours, optimiser, Progress(1))
        for seed in range(3):
            move(ours, optimiser, seed)
        for _, parameter in ours.parameters():
            parameter.data.zero_()
    theirs = begun(other)
    restore(folder, other, theirs)
    assert same(whole(other, theirs), saved)


def test_saves_come_one_after_another(run: Run, make: Make) -> None:
    ours = make()
    optimiser = begun(ours)
    with Saver(run, keep=2, always=(0,)) as saver:
        for step in range(5):
            saver.save(ours, optimiser, Progress(step, score=0.9 if step == 1 else 0.1))
        saver.wait()
        assert [path.name for path in run.checkpoints()] == ["step-0", "step-1", "step-3", "step-4"]
        assert run.best() == run.checkpoint(1)
    assert [each.name for each in threading.enumerate() if "checkpoint" in each.name] == []


def test_failure_is_raised_by_the_next_call(run: Run, make: Make) -> None:
    ours = make()
    optimiser = begun(ours)
    (run.path / "checkpoints").rmdir()
    (run.path / "checkpoints").write_text("a file in the way")
    saver = Saver(run, keep=1)
    saver.save(ours, optimiser, Progress(1))
    with pytest.raises(InputError, match="step-1 cannot be written: "):
        saver.save(ours, optimiser, Progress(2))
    (run.path / "checkpoints").unlink()
    (run.path / "checkpoints").mkdir()
    saver.save(ours, optimiser, Progress(3))
    saver.wait()
    assert [path.name for path in run.checkpoints()] == ["step-3"]


@pytest.mark.parametrize("part", ["weights", "moments"])
def test_what_is_not_finite_never_becomes_a_checkpoint(part: str, run: Run, make: Make) -> None:
    ours = make()
    optimiser = begun(ours)
    move(ours, optimiser, 0)
    broken = next(iter(optimiser.state().values())) if part == "moments" else next(ours.parameters())[1].data
    broken.view(-1)[-1:] = float("inf")
    saver = Saver(run, keep=1)
    saver.save(ours, optimiser, Progress(1))
    with pytest.raises(TrainingStopped, match=r"the checkpoint of step 1 is not written.* not finite"):
        saver.wait()
    assert list((run.path / "checkpoints").iterdir()) == []


def test_error_in_flight_is_not_hidden_by_that_of_the_saver(run: Run, make: Make) -> None:
    ours = make()
    (run.path / "checkpoints").rmdir()
    (run.path / "checkpoints").write_text("a file in the way")
    saver = Saver(run, keep=1)
    saver.save(ours, begun(ours), Progress(1))
    with pytest.raises(RuntimeError, match="mine"), saver:
        raise RuntimeError("mine")


# One process loads the libraries and forks: two that share a model, and one that leaves while it saves.
PROCESSES = """
import os, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sleuth.errors import InputError
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Progress, restore
from sleuth.train.optimiser import Optimiser
from sleuth.model.policy import Policy
from sleuth.train.checkpoint import Saver
from sleuth.train.ranks import Torchrun

torch.set_num_threads(1)
folder = Path(sys.argv[1])

def loaded():
    policy = Policy.load(folder / "model", torch.device("cpu"))
    return policy, lambda: Optimiser(policy.parameters(), learning_rate=1e-2, weight_decay=0.01)

def move(policy, optimiser, seed):
    optimiser.zero()
    for _, each in policy.parameters():
        (each * (seed + 1)).square().sum().backward()
    optimiser.step(1e-2, 1.0)

def on_two_ranks(rank):
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    policy, begun = loaded()
    mesh = init_device_mesh("cpu", (2,))
    for layer in policy.model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy.model, mesh=mesh)
    optimiser, run = begun(), Run.open(folder / "run")
    assert restore(run.checkpoint(1), policy, optimiser, rank=rank).step == 1
    move(policy, optimiser, 1)
    saver = Saver(run, 3, Torchrun(rank, 2, dist.group.WORLD))
    saver.save(policy, optimiser, Progress(2))
    move(policy, optimiser, 2)
    saver.wait()
    dist.barrier()
    saver = Saver(Run(folder / "in the way"), 3, Torchrun(rank, 2, dist.group.WORLD))
    saver.save(policy, optimiser, Progress(3))
    try:
        saver.wait()
    except InputError as error:
        os.write(1, f"{rank} {error}\\n".encode())  # whole: the other process writes there too
    dist.barrier()
    dist.destroy_process_group()

def leaving():
    policy, begun = loaded()
    Saver(Run.open(folder / "left"), 1).save(policy, begun(), Progress(7))
    sys.exit(0)

tasks = [lambda: on_two_ranks(0), lambda: on_two_ranks(1), leaving]
children = []
for task in tasks:
    child = os.fork()
    if not child:
        task()
        sys.exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children) != 0)
"""


def test_one_process_two_ranks_and_one_again(run: Run, make: Make, tmp_path: Path) -> None:
    """A checkpoint of one process goes on in two, theirs in one; what one cannot write is known to both."""
    ours, again, last = make(0), make(2), make(3)
    make(1).save(tmp_path / "model")
    (tmp_path / "in the way").write_text("a file")
    left = Run.create(tmp_path / "left", {})
    optimiser, other = begun(ours), begun(again)
    move(ours, optimiser, 0)
    with Saver(run, keep=3) as saver:
        saver.save(ours, optimiser, Progress(1))
    command = [sys.executable, "-c", PROCESSES, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert ended.returncode == 0, ended.stderr
    move(ours, optimiser, 1)
    assert restore(run.checkpoint(2), again, other).step == 2
    first, second = whole(ours, optimiser), whole(again, other)
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-8) for name in first)
    Policy.load(run.checkpoint(2), torch.device("cpu"))
    told = sorted(ended.stdout.splitlines())
    assert [line[:1] for line in told] == ["0", "1"]
    assert all("cannot be written: " in line for line in told)
    # The third process left before it had written.
    assert restore(left.checkpoint(7), last, begun(last)).step == 7
