"""The model under training, seen as a function from packed rows to logprobs.

Suffixes: N packed tokens, T scored tokens, W model width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.model import head, load, lora
from sleuth.model.attention import Packed
from sleuth.model.lora import LoRA
from sleuth.model.tokens import Tokens
from sleuth.runs import checksums
from sleuth.train.host import Host
from sleuth.train.packing import Pack

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal model and its tokenizer; with an adapter only that is trained.

    Where the weights are split over ranks, `sharded` is what scores: it gathers them.
    """

    model: PreTrainedModel
    tokens: Tokens
    adapter: LoRA | None = None
    sharded: Callable[[Pack, float], tuple[Tensor, Tensor]] | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        adapter: LoRA | None = None,
    ) -> "Policy":
        """The policy of a model folder; one that is a checkpoint is verified."""
        checksums.verify_checkpoint(folder)
        return cls(load.load(folder, device, dtype, adapter), Tokens.load(folder), adapter)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def size(self) -> int:
        """How many parameters there are, trained or not."""
        return sum(each.numel() for each in self.model.parameters())

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, by name."""
        return (each for each in self.model.named_parameters() if each[1].requires_grad)

    def states(self, pack: Pack) -> Tensor:
        """The last hidden states of a pack, with gradients where they are enabled."""
        layout = Packed(pack.lengths, self.device)
        states_NW: Tensor = self.model.base_model(
            input_ids=pack.ids_N[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        return states_NW

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob and entropy at each scored token of a pack, with gradients where they are enabled."""
        if self.sharded is not None:
            return self.sharded(pack, temperature)
        states_TW = self.states(pack)[pack.before_T]
        projection = head.projection(self.model)
        return head.scores(states_TW, projection.weight, projection.bias, pack.target_T, temperature)

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """The policy as it was before training, for as long as this is open; no gradients are recorded."""
        with torch.no_grad(), lora.disabled(self.model):
            yield

    def weights(self, host: Host | None) -> Weights:
        """All weights, whole, copied to the host; where it is None this rank only helps the others to gather theirs."""
        # Weights that are tied stay one tensor. Every rank gathers it once: one that did so again would wait for ever.
        names: dict[int, str] = {}
        found: Weights = {}
        for name, weight in self.model.state_dict(keep_vars=True).items():
            first = names.setdefault(id(weight), name)
            whole = weight.full_tensor() if isinstance(weight, DTensor) and first == name else weight
            if host is not None:
                found[name] = host.copy(f"weights.{name}", whole) if first == name else found[first]
        return found

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes such copies as an ordinary Hugging Face folder, an adapter merged, and beside them the adapter."""
        plain = dict(weights) if self.adapter is None else lora.merge(weights, self.adapter)
        self.model.save_pretrained(folder, state_dict=plain)
        self.tokens.tokenizer.save_pretrained(folder)
        if self.adapter is not None:
            lora.save(weights, self.adapter, folder / lora.FOLDER)

    def save(self, folder: Path) -> None:
        """Writes the policy as it is now."""
        host = Host()
        weights = self.weights(host)
        host.settle()
        self.write(folder, weights)
