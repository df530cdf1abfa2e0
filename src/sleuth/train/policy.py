"""The model under training, seen as a function from packed rows to logprobs."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.model import head, load
from sleuth.model.attention import Packed
from sleuth.model.tokens import Tokens
from sleuth.train.packing import Pack


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal model and its tokenizer."""

    model: PreTrainedModel
    tokens: Tokens

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> "Policy":
        """The policy of a model folder."""
        return cls(load.load(folder, device, dtype), Tokens.load(folder))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob and entropy at each scored token of a pack, with gradients where they are enabled."""
        layout = Packed(pack.lengths, self.device)
        hidden_NW = self.model.base_model(
            input_ids=pack.ids_N[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        projection = head.projection(self.model)
        return head.scores(hidden_NW[pack.before_T], projection.weight, projection.bias, pack.target_T, temperature)

    def save(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder."""
        self.model.save_pretrained(folder)
        self.tokens.tokenizer.save_pretrained(folder)
