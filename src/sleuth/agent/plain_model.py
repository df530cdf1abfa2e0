"""Settings that suit a model without a run: the protocol of its chat template, and limits within its positions."""

from dataclasses import dataclass
from pathlib import Path

from sleuth.agent.loading import AgentOptions
from sleuth.agent.protocol import make_protocol
from sleuth.config import recipe
from sleuth.config.agent import AgentConfig
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.runs.json_files import read_json

LIMITS = {"agent.turn_tokens": 8, "agent.observation_tokens": 4}  # parts of a short context


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Settings that were not given, and a line that explains them."""

    settings: tuple[str, ...]
    note: str


def suggest_settings(model: str, options: AgentOptions) -> Suggestion:
    """Choose the protocol and the limits of a model folder or hub name, where the options leave them open."""
    folder = recipe.resolve_policy(model)
    settings, notes = [], []
    if options.chosen_method in (None, "search") and "agent.protocol" not in options.values:
        protocol, reason = _choose_protocol(folder)
        settings.append(f"agent.protocol={protocol}")
        notes.append(f"agent.protocol={protocol} ({reason})")
    positions = read_json(folder / "config.json").get("max_position_embeddings")
    default = AgentConfig.model_fields["context_tokens"].default
    if isinstance(positions, int) and positions < default and "agent.context_tokens" not in options.values:
        limits = {"agent.context_tokens": positions}
        limits |= {key: max(1, positions // part) for key, part in LIMITS.items() if key not in options.values}
        settings += [f"{key}={value}" for key, value in limits.items()]
        notes.append(f"agent.context_tokens={positions} (the positions of the model)")
    return Suggestion(tuple(settings), "; ".join(notes))


def _choose_protocol(folder: Path) -> tuple[str, str]:
    tokens = Tokens.load(folder)
    if tokens.tokenizer.chat_template is None:
        return "tags", "it has no chat template"
    try:
        make_protocol("tools", tokens)
    except ConfigError:
        return "tags", "its chat template has no function calls that can be parsed"
    return "tools", "function calls of its chat template; a model trained with tags needs --set agent.protocol=tags"
