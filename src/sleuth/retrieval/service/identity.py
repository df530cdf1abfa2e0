"""What a retrieval server says that it serves."""

import asyncio
import json
from pathlib import PurePath
from typing import Any

import httpx

from sleuth.errors import InputError
from sleuth.retrieval.service.client import authorization
from sleuth.retrieval.service.exchange import Failure, exchange
from sleuth.retrieval.service.road import endpoint, proxy_at, transport
from sleuth.retrieval.service.secrets import Secrets

AWAY = ("no connection", "broken connection", "time-out")
SECONDS = 10.0


def served(url: str, token: str | None = None, proxy: str | None = None) -> dict[str, Any] | None:
    """The index behind an address: name, kind and passages; None of a server that does not tell, as most do not.

    One that does not answer at all is an InputError.
    """
    found = asyncio.run(_asked(url, token, proxy))
    if isinstance(found, Failure) and found.kind in AWAY:
        raise InputError(f"the search server {url} does not answer ({found.cause}); start it, or name another")
    return None if isinstance(found, Failure) else found


async def _asked(url: str, token: str | None, proxy: str | None) -> dict[str, Any] | Failure:
    beside = endpoint(url, "/retrieve")
    ready = beside.copy_with(path=f"{beside.path.rpartition('/')[0]}/readyz")
    secrets = Secrets({} if token is None else {"token": token})
    way = transport(proxy_at(proxy))
    async with httpx.AsyncClient(transport=way, headers=authorization(token), timeout=httpx.Timeout(None)) as http:
        return await exchange(http.get(ready), SECONDS, _read, secrets)


def _read(body: bytes) -> dict[str, Any]:
    match json.loads(body):
        case {"index": str(index), "kind": str(kind), "passages": int(passages)}:
            return {"name": PurePath(index).name, "kind": kind, "passages": passages}
    raise ValueError("it does not name an index")
