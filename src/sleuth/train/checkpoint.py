"""Checkpoints: a Hugging Face folder anyone can load, with the optimiser's state beside it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sleuth.errors import InputError
from sleuth.runs import Run, replacing, step_of
from sleuth.train.policy import Policy

# What AdamW keeps for a parameter: its steps, counted on the CPU, and two moments beside the parameter.
COUNT, MOMENTS = "step", ("exp_avg", "exp_avg_sq")


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
        save_file(_state(policy, optimiser), trainer / "optimiser.safetensors")
        (trainer / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
    run.prune(keep)
    return final


def restore(folder: Path, policy: Policy, optimiser: torch.optim.Optimizer) -> Progress:
    """Puts the weights and the optimiser's state back in place, exactly as they were saved."""
    try:
        weights = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        moments = load_file(folder / "trainer" / "optimiser.safetensors")
        progress = Progress(**json.loads((folder / "trainer" / "progress.json").read_text(encoding="utf-8")))
        named = {name: (weights[name], parameter) for name, parameter in policy.model.named_parameters()}
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise InputError(
            f"the checkpoint {folder} cannot be read ({error}); remove it to resume from the one before"
        ) from error
    if progress.step != step_of(folder):
        raise InputError(f"the checkpoint {folder} holds step {progress.step}; it was renamed: give it its name back")
    with torch.no_grad():
        for name, (weight, parameter) in named.items():
            parameter.copy_(weight)
            optimiser.state[parameter] = {
                kind: moments[f"{kind}.{name}"].to(parameter.device if kind in MOMENTS else "cpu", copy=True)
                for kind in (COUNT, *MOMENTS)
                if f"{kind}.{name}" in moments
            }
    return progress


def _state(policy: Policy, optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's state by name; a parameter that no step has moved has none yet."""
    return {
        f"{kind}.{name}": tensor.cpu().contiguous()
        for name, parameter in policy.model.named_parameters()
        for kind, tensor in optimiser.state.get(parameter, {}).items()
    }
