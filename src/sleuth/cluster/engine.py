"""The engines of the rollout workers as one engine, for requests that are not episodes of a worker."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sleuth.cluster import ray_client
from sleuth.cluster.episodes import POLL_SECONDS, RayEpisodes
from sleuth.cluster.pool import Member
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class RayEngine:
    """Engine over a pool of workers; a session stays on its worker, whose cache has its prefix."""

    def __init__(self, episodes: RayEpisodes, on_close: Callable[[], None]) -> None:
        self._episodes, self._on_close = episodes, on_close
        self._homes: dict[Session, Member] = {}

    @property
    def stats(self) -> EngineStats:
        """Cumulative counts of the workers' engines, as far as this process has asked them."""
        return self._episodes.totals.stats

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        session = Session(priority)
        try:
            yield session
        finally:
            self._homes.pop(session, None)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See Engine.generate; a lost worker's request is asked again, and `on_tokens` is called once, at the end."""
        while True:
            member = await self._claim(session)
            try:
                found = await member.handle.generate.remote(
                    list(ids), sampling, session.priority if session is not None else 0
                )
            except Exception as error:
                if not ray_client.is_lost(error):
                    raise
                self._episodes.pool.mark_down(member)
                continue
            finally:
                self._episodes.pool.release(member)
            if isinstance(found, str):
                raise EngineFailure(found)
            completion: Completion = found
            if on_tokens is not None:
                on_tokens(completion.ids)
            return completion

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:  # noqa: ARG002
        raise EngineFailure("weights reach the rollout workers through cluster.weights, not through their engine")

    async def close(self) -> None:
        self._on_close()

    async def _claim(self, session: Session | None) -> Member:
        pool = self._episodes.pool
        while (member := pool.claim(self._homes.get(session) if session is not None else None)) is None:
            await asyncio.sleep(POLL_SECONDS)
            self._episodes.require_workers()
        if session is not None:
            self._homes[session] = member
        return member
