"""The options of sleuth worker; the worker itself is tested in tests/unit/gateway."""

import pytest
from typer.testing import CliRunner

from sleuth.cli.main import app
from sleuth.errors import ConfigError


def test_token_and_agent_are_checked_before_anything_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["worker", "--gateway", "http://127.0.0.1:1", "--agent", "import:no_such_module.run"]
    monkeypatch.delenv("SLEUTH_GATEWAY_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="SLEUTH_GATEWAY_TOKEN"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    monkeypatch.setenv("OTHER", "token")
    with pytest.raises(ConfigError, match="no_such_module"):
        CliRunner().invoke(app, [*command, "--token-env", "OTHER"], catch_exceptions=False)
