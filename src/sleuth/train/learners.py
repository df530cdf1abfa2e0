"""From a config to the models of a run: the one that learns, the one that generates, and what they are held against."""

from collections.abc import Callable
from pathlib import Path

import torch

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import ConfigError
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy, Reference, WithoutAdapter
from sleuth.model.recompute import recompute_layers
from sleuth.train.critic import Critic
from sleuth.train.optimiser import Optimiser
from sleuth.train.publish import Copied, Publisher, Shared
from sleuth.train.ranks import Ranks, require_supported
from sleuth.train.sharding import shard_policy
from sleuth.train.step import Learner


def device_of(ranks: Ranks) -> torch.device:
    """Where this rank computes."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", ranks.rank % torch.cuda.device_count())


def dtype_of(config: Config, device: torch.device) -> torch.dtype:
    """What the weights in use are of."""
    wanted = config.model.dtype
    if wanted == "bfloat16" and device.type == "cpu":
        raise ConfigError("model.dtype = bfloat16 needs a GPU, and there is none; remove it")
    return torch.bfloat16 if device.type == "cuda" and wanted != "float32" else torch.float32


def learner_of(config: Config, ranks: Ranks) -> Learner:
    """The policy with all that trains it."""
    require_supported(config, ranks.world)
    device, train = device_of(ranks), config.train
    folder = recipe.resolve_policy(config.model.policy)
    policy = _policy(config, folder, device)
    known, asked = policy.model.config.max_position_embeddings, config.agent.context_tokens
    if asked > known:
        raise ConfigError(f"agent.context_tokens = {asked} is more than the {known} positions of the model; lower it")
    recompute_layers(policy.model, train.recompute)
    policy = shard_policy(policy, ranks)
    reference = _reference(config, policy, folder, ranks)
    critic = _critic(config, ranks) if config.algorithm.advantage == "gae" else None
    if critic is not None and critic.body.tokens.tokenizer.get_vocab() != policy.tokens.tokenizer.get_vocab():
        raise ConfigError(
            f"algorithm.critic.policy = {config.algorithm.critic.policy} has other tokens than model.policy; "
            "choose a critic with the same tokenizer"
        )
    optimiser = Optimiser(
        policy.model.named_parameters(),
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        kind=train.optimiser,
        offload=train.offload,
        betas=(train.beta1, train.beta2),
        epsilon=train.epsilon,
    )
    context = config.agent.context_tokens
    return Learner(policy, optimiser, config.algorithm, train, context, reference, critic, ranks)


def engine_policy(config: Config, learner: Learner) -> tuple[Policy, Callable[[PagedEngine], Publisher]]:
    """The policy that generates: the learning one itself, or a copy where the two do not keep in step."""
    if config.train.mode == "sync" and learner.ranks.world == 1:
        return learner.policy, Shared
    copy = _policy(config, recipe.resolve_policy(config.model.policy), learner.policy.device)
    # What is not trained is the same in both.
    return copy, lambda engine: Copied(engine, lambda: dict(learner.policy.parameters()))


def _policy(config: Config, folder: Path, device: torch.device) -> Policy:
    lora = config.model.lora
    adapter = LoRA(lora.rank, lora.alpha, lora.targets, config.train.seed) if lora.rank else None
    return Policy.load(folder, device, dtype_of(config, device), adapter)


def _reference(config: Config, policy: Policy, folder: Path, ranks: Ranks) -> Reference | None:
    """Where a distance is charged: the policy without its adapter, or a frozen copy of the whole."""
    if config.algorithm.kl.place == "none":
        return None
    if config.model.lora.rank:
        return WithoutAdapter(policy)
    device = device_of(ranks)
    frozen = Policy.load(folder, device, dtype_of(config, device))
    frozen.model.requires_grad_(False)
    return shard_policy(frozen, ranks)


def _critic(config: Config, ranks: Ranks) -> Critic:
    settings, device = config.algorithm.critic, device_of(ranks)
    folder = recipe.resolve_policy(settings.policy or config.model.policy)
    critic = Critic.load(folder, device, dtype_of(config, device), settings, config.train, ranks)
    known, asked = critic.body.model.config, config.agent.context_tokens
    if asked > known.max_position_embeddings:
        raise ConfigError(
            f"agent.context_tokens = {asked} is more than the {known.max_position_embeddings} positions of "
            f"algorithm.critic.policy = {folder}; choose another critic"
        )
    recompute_layers(critic.body.model, config.train.recompute)
    return critic
