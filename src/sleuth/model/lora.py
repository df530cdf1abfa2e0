"""LoRA: small trained matrices beside the frozen weights of a model, which stays the module it was."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from sleuth.errors import InputError

FOLDER, FILE = "adapter", "adapter_model.safetensors"
NAME = "default"  # what PEFT calls an adapter that was given no name
BASE, A, B = ".base_layer.", f".lora_A.{NAME}.", f".lora_B.{NAME}."
PREFIX = "base_model.model."
ALL = "all-linear"


@dataclass(frozen=True, slots=True)
class LoRA:
    """W becomes W + alpha / rank * B A in the layers of these names, given as q_proj,v_proj; A is drawn by the seed.

    all-linear is every linear layer but the head.
    """

    rank: int
    alpha: float
    targets: str = ALL
    seed: int = 0

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.targets.split(",")]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def attach(model: PreTrainedModel, lora: LoRA) -> None:
    """Puts an adapter that changes nothing yet into the model, in the model's type; from here on only it is trained."""
    from peft import inject_adapter_in_model

    known = _adaptable(model)
    for name in lora.names:
        if name not in known and lora.targets != ALL:
            raise InputError(f"no adapter can be put into {name!r}; choose among {', '.join(sorted(known))}, or {ALL}")
    with torch.random.fork_rng():
        torch.manual_seed(lora.seed)
        inject_adapter_in_model(_settings(lora), model)


def _adaptable(model: PreTrainedModel) -> set[str]:
    """The names of linear layers less the head: logits are made in chunks by a plain one."""
    head = model.get_output_embeddings()
    layers = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head)
    return {name.rpartition(".")[2] for name, _ in layers}


def _settings(lora: LoRA) -> Any:
    from peft import LoraConfig

    targets: Any = ALL if lora.targets == ALL else lora.names
    # PEFT declares alpha an int, and divides by the rank whatever it is.
    return LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]


@contextmanager
def disabled(model: PreTrainedModel) -> Iterator[None]:
    """The model as it was before its adapter; gradients cannot be taken through this."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge(weights: Mapping[str, Tensor], lora: LoRA) -> dict[str, Tensor]:
    """The weights of the plain model that computes what the adapted one does, named as before the adapter."""
    plain = {}
    for name, weight in weights.items():
        if A in name or B in name:
            continue
        at, _, kind = name.rpartition(BASE)
        if at and kind == "weight":
            # Not every CPU multiplies halves.
            change = weights[f"{at}{B}weight"].float() @ weights[f"{at}{A}weight"].float()
            weight = (weight.float() + lora.scale * change).to(weight.dtype)
        plain[name.replace(BASE, ".")] = weight
    return plain


def save(weights: Mapping[str, Tensor], lora: LoRA, folder: Path) -> None:
    """Writes the adapter as PEFT does."""
    folder.mkdir()
    settings = _settings(lora)
    settings.inference_mode = True
    settings.save_pretrained(folder)
    ours = {file_name(name): weight.contiguous() for name, weight in weights.items() if A in name or B in name}
    save_file(ours, folder / FILE, metadata={"format": "pt"})


def file_name(name: str) -> str:
    """What PEFT calls a weight of an adapter in its file."""
    return PREFIX + name.replace(f".{NAME}.", ".")
