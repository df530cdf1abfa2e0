"""What a retrieval server says that it serves."""

import asyncio
import json
from pathlib import PurePath
from typing import Any

import httpx

from sleuth.errors import InputError
from sleuth.retrieval.service.client import authorization
from sleuth.retrieval.service.exchange import Failure, exchange
from sleuth.retrieval.service.retries import Retries
from sleuth.retrieval.service.road import endpoint, proxy_at, transport
from sleuth.retrieval.service.secrets import Secrets

AWAY = ("no connection", "broken connection", "time-out", "deadline")


def served(url: str, token: str | None = None, proxy: str | None = None, *, patience: float) -> dict[str, Any] | None:
    """The index behind an address: name, kind and passages; None of a server that does not tell, as most do not.

    One that does not answer within `patience` seconds is an InputError.
    """
    found = asyncio.run(_asked(url, token, proxy, patience))
    if isinstance(found, Failure) and found.kind in AWAY:
        raise InputError(f"the search server {url} does not answer ({found.cause}); start it, or name another")
    return None if isinstance(found, Failure) else found


async def _asked(url: str, token: str | None, proxy: str | None, patience: float) -> dict[str, Any] | Failure | None:
    beside = endpoint(url, "/retrieve")
    ready = beside.copy_with(path=f"{beside.path.rpartition('/')[0]}/readyz")
    secrets = Secrets({} if token is None else {"token": token})
    way = transport(proxy_at(proxy))
    async with httpx.AsyncClient(transport=way, headers=authorization(token), timeout=httpx.Timeout(None)) as http:

        async def attempt(_: Failure | None) -> dict[str, Any] | Failure | None:
            return await exchange(http.get(ready), patience, _read, secrets)

        return await Retries(patience).first_answer(attempt, asyncio.get_running_loop().time() + patience)


def _read(body: bytes) -> dict[str, Any] | None:
    """The index that an answer names; None of an answer that names none."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"index": str(index), "kind": str(kind), "passages": int(passages)}:
            return {"name": PurePath(index).name, "kind": kind, "passages": passages}
    return None
