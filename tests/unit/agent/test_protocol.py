"""Protocols by name."""

from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.protocol import UserProtocol, make_protocol
from sleuth.agent.tags import Tags
from sleuth.errors import ConfigError, FunctionFailed, UserError
from sleuth.model.tokens import Tokens
from sleuth.records import ToolCall

OWN = """
from sleuth.agent.tags import Tags


class Own(Tags):
    def __init__(self, tokens):
        self.tokens = tokens
"""


def test_by_name(tokens: Tokens) -> None:
    assert isinstance(make_protocol("tags"), Tags)
    assert isinstance(make_protocol("tags", tokens), Tags)
    with pytest.raises(ConfigError, match=r"agent\.protocol = 'tag' is unknown; expected tags, rlinf, tools or"):
        make_protocol("tag")


def test_one_of_the_users_own_is_given_the_tokens(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_grammar.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    made = make_protocol("import:own_grammar.Own", tokens)
    assert isinstance(made, UserProtocol)
    assert isinstance(made.inner, Tags)
    assert vars(made.inner) == {"tokens": tokens}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def own():\n    return Tags()", r"takes \(\) and cannot be called with 1 arguments.*def \(tokens\)"),
        ("async def own(tokens):\n    return Tags()", "is async; expected def"),
        ("def own(tokens):\n    return None", "returned NoneType, which has no stops, .*parse"),
        ("def own(tokens):\n    raise KeyError('nowhere')", r"raised KeyError: 'nowhere' \(.*grammar_3.py:3\)"),
        ("class own(Tags):\n    stops = '>'\n    def __init__(self, tokens): ...", "stops is '>'; expected a tuple"),
    ],
)
def test_a_function_that_makes_no_protocol_is_refused(
    code: str, says: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"grammar_{next(iter(request.node.callspec.indices.values()))}"
    (tmp_path / f"{name}.py").write_text(f"from sleuth.agent.tags import Tags\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=says):
        make_protocol(f"import:{name}.own")


def test_what_a_protocol_of_the_user_raises_or_returns_names_it() -> None:
    class Own(Tags):
        def parse(self, text: str) -> Any:
            return {"text": "nonsense"}.get(text) or 1 / 0

    own = UserProtocol("import:mine.own", Own())
    assert own.observe(ToolCall.search("x"), ((),)) == Tags().observe(ToolCall.search("x"), ((),))
    with pytest.raises(FunctionFailed, match=rf"'import:mine.own' raised ZeroDivisionError.*{Path(__file__).name}:"):
        own.parse("?")
    with pytest.raises(FunctionFailed, match=r"'import:mine.own': Own.parse returned str; expected ToolCall or Answer"):
        own.parse("text")
