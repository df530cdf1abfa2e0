"""What `sleuth serve mcp` refuses before it serves."""

import pytest
import typer
from typer.testing import CliRunner

from sleuth.cli.serve_mcp import mcp
from sleuth.errors import UserError

REFUSED = {
    "no index": (["nowhere"], "nowhere"),
    "an address of nonsense": (["nowhere", "--http", "port"], "expected a port or HOST:PORT"),
    "a port too high": (["nowhere", "--http", "99999"], "expected a port or HOST:PORT"),
    "a token without a door": (["nowhere", "--token-env", "T"], "--token-env has no effect without --http"),
    "a name without a door": (["nowhere", "--allow-host", "T"], "--allow-host has no effect without --http"),
    "a token for a folder": (["nowhere", "--index-token-env", "T"], "no effect without the address of a server"),
    "a device for a server": (["http://localhost:1", "--device", "cpu"], "no effect without an index folder"),
    "no token": (["nowhere", "--http", "0", "--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused(case: str) -> None:
    words, sentence = REFUSED[case]
    app = typer.Typer()
    app.command()(mcp)
    outcome = CliRunner().invoke(app, words)
    assert isinstance(outcome.exception, UserError)
    assert sentence in str(outcome.exception)
    assert outcome.stdout == ""
