"""Models of a run, loaded from its config: the policy, the KL reference model, the teacher and the PPO critic.

Suffixes: T scored tokens, W model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sleuth.config import recipe
from sleuth.config.algorithm import CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.model.lora import LoRA
from sleuth.model.packing import Pack
from sleuth.model.policy import Policy, Reference, WithoutAdapter, select_device, select_dtype
from sleuth.model.recompute import recompute_layers
from sleuth.train.optimiser import Optimiser
from sleuth.train.ranks import ALONE, Ranks
from sleuth.train.sharding import shard, shard_policy


def load_policy(config: Config, device: torch.device) -> Policy:
    """Load the policy from `model.policy`, with a new adapter if LoRA is enabled."""
    model = recipe.resolve_policy(config.model.policy)
    return Policy.load(model, device, select_dtype(config.model, device), make_adapter(config))


def make_adapter(config: Config) -> LoRA | None:
    """Return the LoRA adapter of the settings, None without LoRA."""
    lora = config.model.lora
    return LoRA(lora.rank, lora.alpha, lora.targets, config.train.seed) if lora.rank else None


def load_trained_policy(config: Config, ranks: Ranks) -> Policy:
    """Load the policy to train, sharded over the ranks, with activation recomputation if configured."""
    policy = load_policy(config, select_device(ranks.rank))
    _require_context(policy, config, "the model", "lower it")
    recompute_layers(policy.model, config.train.recompute)
    return shard_policy(policy, ranks)


def load_reference(config: Config, policy: Policy, ranks: Ranks) -> Reference | None:
    """Return the KL reference (the policy without its adapter, or a frozen copy); None without a KL penalty."""
    if config.algorithm.kl.place == "none":
        return None
    if config.model.lora.rank:
        return WithoutAdapter(policy)
    return _load_frozen(recipe.resolve_policy(config.model.policy), config, ranks)


def load_teacher(config: Config, policy: Policy, ranks: Ranks) -> Reference | None:
    """Load the teacher of failed episodes, if any; raises ConfigError if its tokenizer differs from the policy's."""
    name = config.algorithm.teacher.policy
    if name is None:
        return None
    folder = recipe.resolve_policy(name)
    teacher = _load_frozen(folder, config, ranks)
    _require_context(teacher, config, f"algorithm.teacher.policy = {folder}", "choose another teacher")
    _require_vocabulary(teacher, policy, f"algorithm.teacher.policy = {name}", "a teacher")
    return teacher


def _load_frozen(folder: Path, config: Config, ranks: Ranks) -> Policy:
    device = select_device(ranks.rank)
    frozen = Policy.load(folder, device, select_dtype(config.model, device))
    frozen.model.requires_grad_(False)
    return shard_policy(frozen, ranks)


@dataclass(frozen=True, slots=True)
class Critic:
    """A model body with a value head; `values` predicts the return before each scored token of a pack."""

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
        """Load a critic from a model folder, with a value head that initially predicts zero."""
        body = Policy.load(folder, device, dtype)
        body.model.set_output_embeddings(nn.Identity())  # frees the unused language-model head
        head = nn.Linear(body.model.config.hidden_size, 1, bias=True, device=device, dtype=torch.float32)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)

        def values(pack: Pack) -> Tensor:
            states_TW = body.states(pack)[pack.before_T]
            values_T: Tensor = head(states_TW.float())[:, 0]
            return values_T

        computed = shard(values, [body.model.base_model, head], ranks) if ranks.world > 1 else values
        named = [*body.model.base_model.named_parameters(prefix="body"), *head.named_parameters(prefix="head")]
        return cls(body, head, Optimiser.build(named, train, settings.learning_rate), computed)


def load_critic(config: Config, policy: Policy, ranks: Ranks) -> Critic | None:
    """Load the critic, or None without GAE; raises ConfigError if its tokenizer differs from the policy's."""
    if config.algorithm.advantage != "gae":
        return None
    settings, device = config.algorithm.critic, select_device(ranks.rank)
    folder = recipe.resolve_policy(settings.policy or config.model.policy)
    critic = Critic.load(folder, device, select_dtype(config.model, device), settings, config.train, ranks)
    _require_context(critic.body, config, f"algorithm.critic.policy = {folder}", "choose another critic")
    recompute_layers(critic.body.model, config.train.recompute)
    _require_vocabulary(critic.body, policy, f"algorithm.critic.policy = {settings.policy}", "a critic")
    return critic


def _require_vocabulary(model: Policy, policy: Policy, name: str, kind: str) -> None:
    if model.tokens.tokenizer.get_vocab() != policy.tokens.tokenizer.get_vocab():
        raise ConfigError(f"{name} has a different vocabulary from model.policy; choose {kind} with the same tokenizer")


def _require_context(policy: Policy, config: Config, name: str, remedy: str) -> None:
    positions, context = policy.model.config.max_position_embeddings, config.agent.context_tokens
    if context > positions:
        raise ConfigError(f"agent.context_tokens = {context} exceeds the {positions} positions of {name}; {remedy}")
