"""Settings for a model without a run: what its tokenizer and its positions allow."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.agent.loading import AgentOptions
from sleuth.agent.plain_model import suggest_settings
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "


def model(folder: Path, tokens: Tokens, positions: int = 8192) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(f'{{"max_position_embeddings": {positions}}}')
    tokens.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("template", "protocol"), [(None, "tools"), (PLAIN, "tags"), ("", "tags")])
def test_protocol_of_the_chat_template(
    tmp_path: Path, speaker: Callable[..., Tokens], template: str | None, protocol: str
) -> None:
    found = suggest_settings(model(tmp_path / "m", speaker("hermes", template)), AgentOptions())
    assert found.settings == (f"agent.protocol={protocol}",)
    assert f"agent.protocol={protocol} (" in found.note


def test_given_settings_are_left_alone(tmp_path: Path, speaker: Callable[..., Tokens]) -> None:
    name = model(tmp_path / "m", speaker(), 512)
    given = AgentOptions(("agent.protocol=tags", "agent.context_tokens=300"))
    assert suggest_settings(name, given).settings == ()
    assert suggest_settings(name, given).note == ""
    assert "agent.protocol" not in " ".join(suggest_settings(name, AgentOptions(method="rag")).settings)


def test_limits_of_a_short_context(tmp_path: Path, speaker: Callable[..., Tokens]) -> None:
    found = suggest_settings(model(tmp_path / "m", speaker(), 512), AgentOptions(("agent.turn_tokens=9",)))
    assert found.settings == ("agent.protocol=tools", "agent.context_tokens=512", "agent.observation_tokens=128")


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        suggest_settings(str(tmp_path / "nowhere"), AgentOptions())
