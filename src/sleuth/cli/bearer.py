"""The bearer token of a server, by the name of the environment variable that holds it."""

import os

from sleuth.errors import InputError


def bearer(name: str | None) -> str | None:
    """The token in an environment variable; one that was asked for and is not there would leave the server open."""
    if name is None:
        return None
    token = os.environ.get(name, "").strip()
    if not token:
        raise InputError(f"the environment variable {name} is not set or empty; put the bearer token there")
    return token
