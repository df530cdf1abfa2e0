"""What there is to search, opened by name: an index folder, a server, the web, or a function of the user's own."""

import os
from pathlib import Path

from sleuth.config.retrieval import RetrievalConfig, ServiceConfig
from sleuth.errors import ConfigError
from sleuth.hooks import IMPORT, imported
from sleuth.retrieval import manifest
from sleuth.retrieval.base import Retriever
from sleuth.retrieval.cache import Cached
from sleuth.retrieval.function import Function
from sleuth.retrieval.replay import Recorded, Replayed

SERVERS = ("http://", "https://")
WEB = "web:"
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


def named(name: str, service: ServiceConfig | None = None, device: str = "auto", attempts: int = 10) -> Retriever:
    """The retriever that a command names: a folder, an address, web:PROVIDER or import:package.function."""
    service = service or ServiceConfig()
    if name.startswith(SERVERS):
        return _server(name, service, attempts)
    if name.startswith(WEB):
        return _web(name.removeprefix(WEB), service)
    if name.startswith(IMPORT):
        return Function(imported(name), name)
    return _index(Path(name), device)


def identity_of(name: str) -> str | None:
    """What a recording names as searched: the hash of an index, else the name itself; None for a folder not there."""
    if name.startswith((*SERVERS, WEB, IMPORT)):
        return name
    return manifest.fingerprint(Path(name)) if Path(name).exists() else None


def _source(config: RetrievalConfig, folder: Path) -> Retriever:
    if config.local:
        return _index(folder, config.device, config.rerank, config.rerank_depth)
    return named(str(config.index), config.service)


def _index(folder: Path, device: str, rerank: str | None = None, depth: int = 10) -> Retriever:
    from sleuth.retrieval.index import load
    from sleuth.retrieval.service.gather import Gathered

    # Episodes ask one query each; together they cost the encoder and the index little more than one.
    return Gathered(load(folder, device=device, rerank=rerank, depth=depth), waiting=UNBOUNDED)


def _server(url: str, service: ServiceConfig, attempts: int) -> Retriever:
    from sleuth.retrieval.service.client import Client

    return Client(
        url,
        concurrency=service.concurrency,
        rate=service.rate,
        deadline=service.deadline,
        attempts=attempts,
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
