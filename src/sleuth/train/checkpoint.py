"""Checkpoints: a Hugging Face folder anyone can load, with the optimiser's state beside it."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from sleuth.errors import InputError
from sleuth.runs import Run, replacing, step_of
from sleuth.train.policy import Policy

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come; questions and random numbers are pure functions of the step."""

    step: int
    seconds: float
    tokens: int


def save(run: Run, policy: Policy, optimiser: torch.optim.Optimizer, progress: Progress, keep: int) -> Path:
    """Writes a checkpoint under a temporary name, gives it its name when it is whole, and drops the oldest."""
    final = run.checkpoint(progress.step)
    with replacing(final) as folder:
        policy.save(folder)
        trainer = folder / "trainer"
        trainer.mkdir()
        save_file(_moments(policy, optimiser), trainer / "optimiser.safetensors")
        state = {"step": progress.step, "seconds": progress.seconds, "tokens": progress.tokens}
        (trainer / "progress.json").write_text(json.dumps(state), encoding="utf-8")
    run.prune(keep)
    return final


def restore(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> Progress:
    """Puts the weights and the optimiser's state back in place, exactly as they were saved."""
    try:
        weights = load_file(folder / "model.safetensors")
        moments = load_file(folder / "trainer" / "optimiser.safetensors")
        state = json.loads((folder / "trainer" / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the checkpoint {folder} cannot be read ({error}); remove it to resume from the one before"
        ) from error
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            parameter.copy_(weights[name])
            count = moments[f"step.{name}"]
            optimiser.state[parameter] = {"step": count.clone()} | {
                moment: moments[f"{moment}.{name}"].to(parameter.device, copy=True) for moment in MOMENTS
            }
    if state["step"] != step_of(folder):
        raise InputError(f"the checkpoint {folder} holds step {state['step']}; it was renamed: give it its name back")
    return Progress(state["step"], state["seconds"], state["tokens"])


def _moments(policy: Policy, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, parameter in policy.model.named_parameters():
        state = optimiser.state[parameter]
        tensors[f"step.{name}"] = state["step"].cpu()
        tensors |= {f"{moment}.{name}": state[moment].cpu().contiguous() for moment in MOMENTS}
    return tensors
