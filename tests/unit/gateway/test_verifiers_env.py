import sys

import pytest

from sleuth.errors import MissingExtra
from sleuth.gateway.agent_function import load_agent


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sleuth.gateway.verifiers_env", raising=False)
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sleuth\[verifiers\]'"):
        load_agent("verifiers:gsm8k")
