"""A model named by its address on the command line, with its options, which have no effect elsewhere."""

from typing import TYPE_CHECKING

import typer

from sleuth.cli.finite import finite
from sleuth.errors import ConfigError

if TYPE_CHECKING:
    from sleuth.engines.remote import Endpoint

MODEL = typer.Option("--model", metavar="NAME", help="with an address: the model there")
KEY_ENV = typer.Option(help="with an address: environment variable with the key; default OPENAI_API_KEY")
TIMEOUT = typer.Option(
    min=0.001, callback=finite, help="with an address: seconds after which a request is sent again; default 300"
)


def endpoint_of(name: str, model: str | None, key_env: str | None, timeout: float | None) -> "Endpoint | None":
    """The endpoint that an address names; None where the name is none, with which the options are refused."""
    from sleuth.engines.remote import DEFAULT_TIMEOUT, Endpoint, is_address

    given = {"--model": model, "--key-env": key_env, "--timeout": timeout}
    if not is_address(name):
        for option, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{option} has no effect without an address such as http://host:8000/v1; leave it out"
                )
        return None
    # Without a name, the list of the server says which there are.
    return Endpoint(name, model or "", key_env, DEFAULT_TIMEOUT if timeout is None else timeout)
