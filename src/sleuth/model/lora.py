"""LoRA: small trained matrices added to the frozen weights of a model; the model keeps its class."""

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
NAME = "default"  # PEFT's name for an unnamed adapter
BASE, A, B = ".base_layer.", f".lora_A.{NAME}.", f".lora_B.{NAME}."
PREFIX = "base_model.model."
ALL = "all-linear"


@dataclass(frozen=True, slots=True)
class LoRA:
    """W + alpha / rank * B A in the layers named by `targets` (such as q_proj,v_proj); A is initialised from `seed`.

    all-linear means every linear layer except the output head.
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
    """Add an adapter, initially without effect, in the model's dtype; only the adapter's parameters stay trainable."""
    from peft import inject_adapter_in_model

    # Without the head: its logits are computed in chunks by a plain linear layer.
    head = model.get_output_embeddings()
    linears = (name for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head)
    known = {name.rpartition(".")[2] for name in linears}
    for name in lora.names:
        if name not in known and lora.targets != ALL:
            raise InputError(f"{name!r} cannot take an adapter; choose from {', '.join(sorted(known))}, or {ALL}")
    with torch.random.fork_rng():
        torch.manual_seed(lora.seed)
        inject_adapter_in_model(_peft_config(lora), model)


def _peft_config(lora: LoRA) -> Any:
    from peft import LoraConfig

    targets: Any = ALL if lora.targets == ALL else lora.names
    # PEFT declares alpha as int, but only divides it by the rank.
    return LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]


@contextmanager
def disabled(model: PreTrainedModel) -> Iterator[None]:
    """Compute without the adapter; gradients cannot flow through this."""
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
    """Merge the adapter into the weights, and return them under the base model's names."""
    merged = {}
    for name, weight in weights.items():
        if A in name or B in name:
            continue
        layer, _, kind = name.rpartition(BASE)
        if layer and kind == "weight":
            # In fp32: not every CPU multiplies half-precision matrices.
            change = weights[f"{layer}{B}weight"].float() @ weights[f"{layer}{A}weight"].float()
            weight = (weight.float() + lora.scale * change).to(weight.dtype)
        merged[name.replace(BASE, ".")] = weight
    return merged


def save(weights: Mapping[str, Tensor], lora: LoRA, folder: Path) -> None:
    """Write the adapter in PEFT's format."""
    folder.mkdir()
    config = _peft_config(lora)
    config.inference_mode = True
    config.save_pretrained(folder)
    adapter = {file_name(name): weight.contiguous() for name, weight in weights.items() if A in name or B in name}
    save_file(adapter, folder / FILE, metadata={"format": "pt"})


def file_name(name: str) -> str:
    """Name of an adapter weight in a PEFT file."""
    return PREFIX + name.replace(f".{NAME}.", ".")
