"""Retriever replicas: actors that hold the index, and the client that spreads searches over them."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sleuth.agent.loading import SEARCHES
from sleuth.cluster import ray_client
from sleuth.cluster.actor import Failure, Greeting, enter, greet
from sleuth.config.tree import Config
from sleuth.errors import SearchUnavailable, UserError
from sleuth.retrieval.backends import open_retriever
from sleuth.retrieval.retriever import Retriever, SearchOutcome

PAUSE = 1.0  # seconds before the replicas are asked again, if all are lost


class RetrieverReplica:
    """Holds the index of a run; its methods are called through Ray."""

    def __init__(self, config: Config, folder: Path, index: Path, home: str) -> None:
        enter(home)
        self._config, self._folder, self._index = config, folder, index
        self._opening = asyncio.Lock()
        self._retriever: Retriever | None = None

    async def hello(self) -> Greeting:
        return greet()

    async def open(self) -> Failure | None:
        """Open the index, once; a user's error is returned."""
        async with self._opening:
            if self._retriever is None:
                recording = self._folder / SEARCHES
                try:
                    self._retriever = await asyncio.to_thread(
                        open_retriever, self._config.retrieval, self._index, recording
                    )
                except UserError as error:
                    return Failure.of(error)
        return None

    async def pulse(self) -> None:
        """Return at once, unless the process hangs."""

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        if (failure := await self.open()) is not None:  # after a restart
            return [SearchUnavailable(query, failure.text) for query in queries]
        assert self._retriever is not None  # noqa: S101  it was opened
        return await self._retriever.search(queries, k)


class ReplicatedRetriever:
    """Retriever over replicas, in turn; the queries of a lost replica are asked of the next one.

    If all are lost, queries wait at most `patience` seconds for one that Ray restarts.
    """

    def __init__(self, replicas: Sequence[Any], patience: float) -> None:
        self._replicas, self._patience = tuple(replicas), patience
        self._turn = itertools.count()

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        cause, end = "", time.monotonic() + self._patience
        for attempt in itertools.count(1):
            replica = self._replicas[next(self._turn) % len(self._replicas)]
            try:
                outcomes: list[SearchOutcome] = await replica.search.remote(list(queries), k)
            except Exception as error:
                if not ray_client.is_lost(error):
                    raise
                cause = ray_client.describe_failure(error)
            else:
                return outcomes
            if time.monotonic() > end:
                break
            if attempt % len(self._replicas) == 0:
                await asyncio.sleep(PAUSE)
        return [SearchUnavailable(query, f"every retriever replica is lost ({cause})") for query in queries]
