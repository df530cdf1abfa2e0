"""The policy: a causal language model that maps packed rows to log-probabilities.

Suffixes: N packed tokens, T scored tokens, W model width.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.config.train import ModelConfig
from sleuth.errors import ConfigError
from sleuth.model import lm_head, load, lora
from sleuth.model.attention import PackedLayout, SharedPrefixLayout
from sleuth.model.lora import LoRA
from sleuth.model.packing import TEMPERATURE, Pack
from sleuth.model.tokens import Tokens
from sleuth.runs import checksums

Weights = dict[str, Tensor]


def select_device(rank: int = 0) -> torch.device:
    """The GPU of a rank, or the CPU if there is no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


def select_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype of the weights: bfloat16 on GPUs unless `model.dtype` says otherwise, float32 on CPUs."""
    if config.dtype == "bfloat16" and device.type == "cpu":
        raise ConfigError("model.dtype = bfloat16 needs a GPU, and none is available; remove the setting")
    return torch.bfloat16 if device.type == "cuda" and config.dtype != "float32" else torch.float32


class HostBuffers:
    """Reusable host copies of tensors by name, in pinned memory if there is a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """Start a copy that is complete after `synchronize`; the next copy with the same name overwrites it."""
        source = tensor.detach()
        if isinstance(source, DTensor):
            return source.cpu() if source.device.type != "cpu" else source.clone()
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (source.shape, source.dtype):
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=torch.cuda.is_available())
            self._buffers[name] = buffer
        return buffer.copy_(source, non_blocking=True)

    def synchronize(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal model with its tokenizer; with an adapter, only the adapter is trained.

    `sharded` replaces the forward pass of `score` when the weights are sharded over ranks.
    """

    model: PreTrainedModel
    tokens: Tokens
    adapter: LoRA | None = None
    sharded: Callable[[Pack, float], tuple[Tensor, Tensor]] | None = None

    @classmethod
    def load(
        cls, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32, adapter: LoRA | None = None
    ) -> "Policy":
        """Load a model folder, verifying checksums if it is a checkpoint."""
        checksums.verify_checkpoint(folder)
        return cls(load.load(folder, device, dtype, adapter), Tokens.load(folder), adapter)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def size(self) -> int:
        """Number of parameters, trained or not."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, each) for name, each in self.model.named_parameters() if each.requires_grad)

    def states(self, pack: Pack) -> Tensor:
        """Last hidden states of a pack."""
        layout: PackedLayout | SharedPrefixLayout
        if pack.place_E is None:
            layout = PackedLayout(pack.lengths, self.device)
        else:
            layout = SharedPrefixLayout(pack.lengths, pack.place_E)
        states_NW: Tensor = self.model.base_model(
            input_ids=pack.ids_N[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        return states_NW

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy at each scored token of a pack; a column of temperatures takes precedence."""
        if self.sharded is not None:
            return self.sharded(pack, temperature)
        states_TW = self.states(pack)[pack.before_T]
        projection = lm_head.output_projection(self.model)
        head = projection.weight, projection.bias
        temperature_T = pack.columns.get(TEMPERATURE)
        if temperature_T is None or not len(temperature_T):
            return lm_head.score_tokens(states_TW, *head, pack.target_T, temperature)
        places, parts = [], []
        for each in temperature_T.unique().tolist():
            places.append((temperature_T == each).nonzero()[:, 0])
            parts.append(lm_head.score_tokens(states_TW[places[-1]], *head, pack.target_T[places[-1]], each))
        order_T = torch.cat(places).argsort()
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs)[order_T], torch.cat(entropies)[order_T]

    def weights(self, buffers: HostBuffers | None) -> Weights:
        """Copy the full weights to the host; a rank that passes None only takes part in gathering them."""
        # Tied weights are one tensor: gathering it twice would deadlock the ranks.
        names: dict[int, str] = {}
        weights: Weights = {}
        for name, weight in self.model.state_dict(keep_vars=True).items():
            first = names.setdefault(id(weight), name)
            whole = weight.full_tensor() if isinstance(weight, DTensor) and first == name else weight
            if buffers is not None:
                weights[name] = buffers.copy(f"weights.{name}", whole) if first == name else weights[first]
        return weights

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a Hugging Face folder with the adapter merged, and the adapter itself in a subfolder."""
        merged = dict(weights) if self.adapter is None else lora.merge(weights, self.adapter)
        self.model.save_pretrained(folder, state_dict=merged)
        self.tokens.tokenizer.save_pretrained(folder)
        if self.adapter is not None:
            lora.save(weights, self.adapter, folder / lora.FOLDER)

    def save(self, folder: Path) -> None:
        buffers = HostBuffers()
        weights = self.weights(buffers)
        buffers.synchronize()
        self.write(folder, weights)


class Reference(Protocol):
    """Frozen reference policy of the KL penalty."""

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class WithoutAdapter:
    """Reference that reuses the policy with its adapter disabled, without a second copy of the weights."""

    policy: Policy

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), lora.disabled(self.policy.model):
            return self.policy.score(pack, temperature)
