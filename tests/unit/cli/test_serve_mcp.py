"""Options that `sleuth serve mcp` rejects."""

import pytest
import typer
from typer.testing import CliRunner

from sleuth.cli.serve import mcp
from sleuth.errors import UserError

REFUSED = {
    "no index": (["nowhere"], "nowhere"),
    "a malformed address": (["nowhere", "--http", "port"], "HOST:PORT"),
    "a port too high": (["nowhere", "--http", "99999"], "HOST:PORT"),
    "a token without HTTP": (["nowhere", "--token-env", "T"], "--http"),
    "a host name without HTTP": (["nowhere", "--allow-host", "T"], "--http"),
    "a token for a folder": (["nowhere", "--index-token-env", "T"], "--index-token-env"),
    "a device for a server": (["http://localhost:1", "--device", "cpu"], "--device"),
    "no token": (["nowhere", "--http", "0", "--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_options_are_rejected(case: str) -> None:
    words, fact = REFUSED[case]
    app = typer.Typer()
    app.command()(mcp)
    outcome = CliRunner().invoke(app, words)
    assert isinstance(outcome.exception, UserError)
    assert fact in str(outcome.exception)
    assert outcome.stdout == ""
