"""What there is to search, opened by name: an index folder, a server, the web, or a function of the user's own."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sleuth.config.hooks import IMPORT, import_function
from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.credentials import redacted
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.retrieval import manifest
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.cache import Cached
from sleuth.retrieval.function import CONTRACT, Function
from sleuth.retrieval.replay import Recorded, Replayed

if TYPE_CHECKING:
    from sleuth.retrieval.service.client import Client

SERVERS = ("http://", "https://")
WEB = "web:"
PATIENCE = 10.0  # seconds in which a server that is just starting has to be there
UNBOUNDED = 1 << 40  # episodes of our own wait for their searches: there is no one to turn away


def opened(config: RetrievalConfig, folder: Path, recording: Path) -> Retriever:
    """The retriever of a run; `folder` is where its index lies, `recording` where its searches are to be written."""
    identity = identity_of(config.index if config.index and not config.local else str(folder))
    if config.replay is not None:
        return Replayed(Path(config.replay), identity)
    retriever = _source(config, folder)
    if config.record:
        retriever = Recorded(retriever, recording, identity or "")
    return Cached(retriever, config.cache) if config.cache else retriever


def named(name: str, service: ServiceConfig | None = None, device: str = "auto") -> Retriever:
    """The retriever that a command names: a folder, an address, web:PROVIDER or import:package.function."""
    service = service or ServiceConfig()
    if name.startswith(SERVERS):
        return _server(name, service)
    if name.startswith(WEB):
        return _web(name.removeprefix(WEB), service)
    if name.startswith(IMPORT):
        return Function(import_function(name, CONTRACT), name, service.deadline, service.concurrency)
    return _index(Path(name), device)


def require_ready(name: str | None, service: ServiceConfig | None = None, patience: float = PATIENCE) -> None:
    """Raises InputError where `name` is the address of a retrieval server that does not answer.

    A server that is just starting has `patience` seconds, never more than the deadline of a search.
    """
    if name is None or not name.startswith(SERVERS):
        return
    from sleuth.retrieval.service.identity import served

    service = service or ServiceConfig()
    if served(name, server_token(service), service.proxy, patience=min(patience, service.deadline)) is None:
        # A server of others, which has no /readyz: only a search tells.
        (found,) = asyncio.run(_server(name, service).search(["ready"], 1))
        if isinstance(found, SearchUnavailable):
            raise InputError(f"the search server {name} does not answer ({found.cause}); start it, or name another")


def identity_of(name: str) -> str | None:
    """What a recording names as searched: the hash of an index, else the name itself; None for a folder not there."""
    if name.startswith((*SERVERS, WEB, IMPORT)):
        return redacted(name)
    return manifest.fingerprint(Path(name)) if Path(name).exists() else None


def _source(config: RetrievalConfig, folder: Path) -> Retriever:
    if config.local:
        return _index(folder, config.device, config.rerank, config.rerank_depth)
    return named(str(config.index), config.service)


def _index(folder: Path, device: str, rerank: str | None = None, depth: int = 10) -> Retriever:
    from sleuth.retrieval.index import load
    from sleuth.retrieval.service.gather import Gathered

    # Episodes ask one query each; together they cost the encoder and the index little more than one.
    loaded = load(folder, device=device, rerank=rerank, depth=depth)
    return Gathered(loaded, waiting=UNBOUNDED, characters=UNBOUNDED)


def _server(url: str, service: ServiceConfig) -> "Client":
    from sleuth.retrieval.service.client import Client

    return Client(
        url,
        concurrency=service.concurrency,
        rate=service.rate,
        deadline=service.deadline,
        token=server_token(service),
        proxy=service.proxy,
    )


def _web(provider: str, service: ServiceConfig) -> Retriever:
    from sleuth.retrieval.web.search import Web

    return Web(
        provider,
        language=service.language,
        country=service.country,
        pages=service.pages,
        proxy=service.proxy,
        concurrency=service.concurrency,
        rate=service.rate,
        deadline=service.deadline,
    )


def server_token(service: ServiceConfig) -> str | None:
    """The token of a server, from the environment variable that holds it."""
    variable = service.token_env
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"the environment variable {variable} is empty; put the server's bearer token there")
    return token
