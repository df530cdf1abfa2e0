"""The critic of PPO: a causal model with one number a token, the reward still to come.

Suffixes: T scored tokens, W model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from sleuth.config.algorithm import CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.model.packing import Pack
from sleuth.model.policy import Policy
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.sharding import shard


@dataclass(frozen=True, slots=True)
class Critic:
    """A policy's body with a value for its head, and the optimiser of both.

    `values` tells what is expected before each scored token of a pack is chosen.
    """

    body: Policy
    head: nn.Linear
    optimiser: Optimiser
    values: Callable[[Pack], Tensor]

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        settings: CriticConfig,
        train: TrainConfig,
        ranks: Ranks = ALONE,
    ) -> "Critic":
        """The critic that begins as the model of a folder; at first it expects nothing."""
        body = Policy.load(folder, device, dtype)
        # No logits are made here: their weights would only take room.
        body.model.set_output_embeddings(nn.Identity())
        head = nn.Linear(body.model.config.hidden_size, 1, bias=True, device=device, dtype=torch.float32)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        values: Callable[[Pack], Tensor] = partial(_values, body, head)
        if ranks.world > 1:
            values = shard(values, [body.model.base_model, head], ranks)
        named = [*body.model.base_model.named_parameters(prefix="body"), *head.named_parameters(prefix="head")]
        optimiser = Optimiser(
            named,
            learning_rate=settings.learning_rate,
            weight_decay=train.weight_decay,
            kind=train.optimiser,
            offload=train.offload,
            betas=(train.beta1, train.beta2),
            epsilon=train.epsilon,
        )
        return cls(body, head, optimiser, values)


def _values(body: Policy, head: nn.Linear, pack: Pack) -> Tensor:
    states_TW = body.states(pack)[pack.before_T]
    values_T: Tensor = head(states_TW.float())[:, 0]
    return values_T
