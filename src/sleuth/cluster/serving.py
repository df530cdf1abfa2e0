"""Serve an index from a Ray cluster: replicas behind Ray Serve, each with all passages or one shard of them."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.cluster import ray_client, ray_libraries
from sleuth.cluster.replicas import connected_nodes, plan_replicas
from sleuth.corpus.passages import PassageStore
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.retrieval import manifest
from sleuth.retrieval.index import open_passages, open_ranker, read_hits
from sleuth.retrieval.retriever import Ranking, SearchOutcome
from sleuth.retrieval.service.openapi import ShardStatus

PAUSE = 0.5  # seconds before a search is sent again, if its replica was lost
PATIENCE = 120.0  # seconds that a search waits for a replica that Ray restarts


def shard_rows(passages: int, shards: int) -> list[range]:
    """Divide the rows of a corpus into contiguous shards whose sizes differ by at most one."""
    ends = [passages * number // shards for number in range(shards + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def merge_rankings(rankings: Sequence[Ranking], id_order: NDArray[np.uint32], k: int) -> Ranking:
    """Return the best `k` rows of the rankings of all shards, ties by passage id."""
    merged = [pair for ranking in rankings for pair in ranking]
    return sorted(merged, key=lambda pair: (-pair[1], id_order[pair[0]]))[:k]


class IndexReplica:
    """Ranks the passages of an index, or of one shard of it; runs in a replica of Ray Serve."""

    def __init__(self, index: Path, device: str, rerank: str | None, rows: range | None) -> None:
        self._ranker, _ = open_ranker(index, device=device, rerank=rerank, rows=rows)
        self._thread = ThreadPoolExecutor(1, "search")  # health checks are answered during a search

    async def rank(self, queries: list[str], k: int) -> list[Ranking]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ranker.rank, queries, k)


@dataclass(frozen=True, slots=True)
class ShardedRetriever:
    """Retriever over shards, each with replicas behind a handle; a search whose replica is lost is sent again."""

    store: PassageStore
    applications: tuple[str, ...]
    handles: tuple[Any, ...]
    replicas: int

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        asked, end = list(queries), time.monotonic() + PATIENCE
        limit, numbers = min(k, len(self.store)), range(len(self.handles))
        found = await asyncio.gather(*(self._rank(number, asked, limit, end) for number in numbers))
        if causes := [each for each in found if isinstance(each, str)]:
            return [SearchUnavailable(query, causes[0]) for query in asked]
        by_query = zip(*(each for each in found if not isinstance(each, str)), strict=True)
        rankings = [merge_rankings(parts, self.store.ranks, k) for parts in by_query]
        return await asyncio.to_thread(read_hits, self.store, asked, rankings)

    async def shard_status(self) -> list[ShardStatus]:
        """Return the number of replicas of each shard, and how many of them are running."""
        ready = await asyncio.to_thread(ray_libraries.ready_replicas, self.applications)
        return [ShardStatus(replicas=self.replicas, ready=count) for count in ready]

    async def _rank(self, number: int, queries: list[str], k: int, end: float) -> list[Ranking] | str:
        """Return the rankings of one shard, or why there are none."""
        name = f"shard {number + 1} of {len(self.handles)}"
        while True:
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    rankings: list[Ranking] = await self.handles[number].rank.remote(queries, k)
                return rankings
            except TimeoutError:
                return f"{name} had no ready replica for {PATIENCE:g} s; see /readyz"
            except Exception as error:
                if not ray_libraries.is_lost(error):
                    return f"{name} failed: {ray_client.describe_failure(error)}"
            await asyncio.sleep(PAUSE)


def require_shardable(described: manifest.Manifest, index: Path, shards: int, rerank: str | None) -> None:
    """Raise ConfigError if shards of an index would not give the results of the whole index."""
    if shards == 1:
        return
    if described.kind != "dense":
        reasons = {
            "bm25": "BM25 scores depend on the statistics of the whole corpus",
            "hybrid": "hybrid scores depend on the ranks in the whole corpus",
            "ann": "an approximate index is one graph or one set of lists",
        }
        raise ConfigError(
            f"--shards = {shards} needs a dense index, but {index} is {described.kind}: "
            f"{reasons[described.kind]}; use --replicas"
        )
    if rerank is not None:
        raise ConfigError(
            f"--rerank has no effect on shards, which hold a part of the candidates; remove --rerank or "
            f"--shards {shards}"
        )
    if shards > described.passages:
        raise ConfigError(f"--shards = {shards}, but {index} has {described.passages:,} passages; use fewer shards")


@contextmanager
def replicated_index(
    index: Path, address: str, port: int, *, replicas: int, shards: int, device: str = "auto", rerank: str | None = None
) -> Iterator[ShardedRetriever]:
    """Start `replicas` of each shard of an index on a Ray cluster; yield the retriever over them, once all are ready.

    `port` is that of the server: when one that was killed starts again, it takes over the replicas it left behind.
    """
    described = manifest.read(index)
    require_shardable(described, index, shards, rerank)
    index = index.resolve()
    store = open_passages(index)
    if described.encoder is None and rerank is None:
        device = "cpu"
    with connected_nodes(address) as nodes:
        plan = plan_replicas(replicas * shards, device, nodes)
        host = re.sub(r"\W", "-", f"{index.name}-{ray_client.own_address()}-{port}")
        applications = {
            f"sleuth-{host}-shard-{number}": (index, plan.device, rerank, rows if shards > 1 else None)
            for number, rows in enumerate(shard_rows(described.passages, shards), 1)
        }
        with ray_libraries.deployed(applications, IndexReplica, replicas=replicas, needs=plan.needs) as handles:
            yield ShardedRetriever(store, tuple(applications), tuple(handles), replicas)
