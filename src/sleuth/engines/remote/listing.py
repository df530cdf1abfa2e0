"""What an endpoint says that it serves."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleuth.engines.remote.endpoint import Endpoint
from sleuth.engines.remote.exchange import Away, Refused, asked
from sleuth.errors import InputError

SECONDS = 30.0
PATIENCE = 2.0  # seconds in which an address that refuses connections is tried again: a person waits
# What stays the same from one question to the next; servers make up a date and permissions each time.
TOLD = ("root", "owned_by", "max_model_len")
SHOWN = 20
UNTOLD = (404, 405, 501)  # from servers without a list


def served(endpoint: Endpoint) -> Mapping[str, Any] | None:
    """What the server says of the model; None of a server that has no list.

    A server that does not answer or takes no such key, and a model that is not in its list, are an InputError.
    """
    try:
        listed = asyncio.run(_listed(endpoint))
    except Away as error:
        raise InputError(f"{error}; start the server, or name another") from error
    except Refused as error:
        if error.status in UNTOLD:
            return None
        raise InputError(str(error)) from error
    models = _models(listed)
    if models is None:
        return None
    if endpoint.model not in models:
        names = ", ".join([*models][:SHOWN]) + (", …" if len(models) > SHOWN else "")
        given = f"{endpoint.base} serves no model {endpoint.model!r}" if endpoint.model else "no model is named"
        raise InputError(f"{given}; name one with --model: {names or 'it serves none'}")
    return {name: value for name in TOLD if isinstance(value := models[endpoint.model].get(name), str | int)}


async def _listed(endpoint: Endpoint) -> Any:
    brief = replace(endpoint, timeout=min(SECONDS, endpoint.timeout), patience=PATIENCE)
    async with endpoint.client() as http:
        return await asked(http, brief, "/models")


def _models(listed: Any) -> dict[str, Mapping[str, Any]] | None:
    """The models by name; None where the answer is no list of models."""
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in rows):
        return None
    return {row["id"]: row for row in rows}
