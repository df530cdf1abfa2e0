"""Protocols by name."""

from pathlib import Path

import pytest

from sleuth.agent.protocol import named
from sleuth.agent.tags import Tags
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens

OWN = """
from sleuth.agent.tags import Tags


class Own(Tags):
    def __init__(self, tokens):
        self.tokens = tokens
"""


def test_by_name(tokens: Tokens) -> None:
    assert isinstance(named("tags"), Tags)
    assert isinstance(named("tags", tokens), Tags)
    with pytest.raises(ConfigError, match=r"agent\.protocol = 'tag' is unknown, expected tags, tools, tools-access or"):
        named("tag")


def test_one_of_the_users_own_is_given_the_tokens(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_grammar.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    made = named("import:own_grammar.Own", tokens)
    assert isinstance(made, Tags)
    assert vars(made) == {"tokens": tokens}
