"""The engine over vLLM servers: tokens in, tokens and their logprobs out, over HTTP.

Supported: vLLM 0.26 to 0.32, with --logprobs-mode processed_logprobs; for new weights VLLM_SERVER_DEV_MODE=1 as well.
A call that breaks off, since its server died or its weights were replaced, keeps the tokens that came and asks for the
rest after them.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.paged.stops import Stops
from sleuth.engines.vllm import head
from sleuth.engines.vllm.disk import reading
from sleuth.engines.vllm.draft import Draft
from sleuth.engines.vllm.fleet import Fleet
from sleuth.engines.vllm.launch import Started
from sleuth.engines.vllm.message import is_cut
from sleuth.engines.vllm.probe import Served, probe
from sleuth.engines.vllm.push import InFlight, Load, Way, push
from sleuth.engines.vllm.score import rescored
from sleuth.engines.vllm.server import Lost, Server
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

# Seconds before a call that broke off without a token is sent again; doubled with each further break.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 8.0
# Seconds between two looks whether new weights have arrived.
LOOK = 0.01


class VllmEngine:
    """Asks one of several servers; made by `connect`.

    `transport` carries new weights to the servers; without one they cannot be published. `in_flight` says what becomes
    of requests: `finish` lets the old weights do so first; `pause` and `abort` have the new ones sample the rest
    of our own, and `abort` ends those of others. `ends` are the ids that end a text, besides those the server knows.
    `own` is a server that is stopped when the engine is closed. A call that breaks off is sent again, for `patience`
    seconds without a token.
    """

    def __init__(
        self,
        fleet: Fleet,
        tokens: Tokens,
        *,
        model: str,
        context: int,
        ends: Sequence[int] = (),
        transport: Way | None = None,
        in_flight: InFlight = "pause",
        own: Started | None = None,
        patience: float = 240.0,
    ) -> None:
        self._fleet, self._stops = fleet, Stops(tokens)
        self._model, self._context, self._ends = model, context, tuple(ends)
        self._transport, self._in_flight, self._own = transport, in_flight, own
        self._version, self._epoch, self._patience = 0, 0, patience
        self._publishing = threading.Lock()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[str],
        tokens: Tokens,
        *,
        context: int,
        slots: int = 256,
        silence: float = 120.0,
        ends: Sequence[int] = (),
        transport: Way | None = None,
        in_flight: InFlight = "pause",
        own: Started | None = None,
    ) -> Self:
        """Speaks to the servers at these addresses, once each has shown that it can do what is asked of it.

        `slots` calls go to each at a time; a server that sends no token for `silence` seconds is tried again, for
        twice that time.
        """
        fleet = Fleet([Server(address, places=slots, silence=silence) for address in dict.fromkeys(addresses)])
        try:
            model = _agreed([await probe(server) for server in fleet.servers], context)
        finally:
            # The calls may come in another event loop than this one.
            await fleet.hang_up()
        return cls(
            fleet,
            tokens,
            model=model,
            context=context,
            ends=ends,
            transport=transport,
            in_flight=in_flight,
            own=own,
            patience=2 * silence,
        )

    @property
    def lost(self) -> Mapping[str, str]:
        """The servers that were taken out, and why."""
        return dict(self._fleet.lost)

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        session = Session(priority)
        try:
            yield session
        finally:
            self._fleet.leave(session)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        draft, breaks, ends = Draft(ids, sampling, context=self._context, stops=self._stops), 0, 0.0
        clock = asyncio.get_running_loop().time
        while draft.finish is None:
            before, began = len(draft.ids), clock()
            reason = await self._go_on(draft, session, on_tokens)
            if len(draft.ids) > before or reason is None:
                breaks = 0
                continue
            breaks += 1
            ends = began + self._patience if breaks == 1 else ends
            if clock() >= ends:
                raise EngineFailure(
                    f"no token came in {breaks} tries and {self._patience:g} s, the last of which ended with: {reason}"
                )
            await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(breaks - 1, 32), ends - clock()))
        return draft.completion()

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        if weights is not None and self._transport is None:
            raise EngineFailure("weights were published to servers, and no way was named by which they go there")
        with self._publishing:
            if weights is not None and self._transport is not None:
                self._replace(self._transport.ready(weights, version))
            self._version = version

    def require_head(self, weights: "Mapping[str, Tensor]", embedding: str) -> None:
        """Refuses servers that go on with the old head of a model whose head is its embedding; publish afterwards."""
        before = {server.address: head.said(server.address, self._model) for server in self._fleet.servers}
        self.publish(head.moved_on(weights, embedding), self._version)
        for server in self._fleet.servers:
            after = head.said(server.address, self._model, head.PROMPT + 1)
            if not head.follows(before[server.address], after, len(weights[embedding])):
                raise ConfigError(
                    f"{server.address} goes on with its old head when new weights come, as vLLM on a CPU does for a "
                    "model whose head is its embedding; serve it on a GPU, or choose engine.kind = paged"
                )

    def load(self, folder: Path, version: int = 0) -> None:
        """Has the servers go on with the weights of a model folder, which they read under the same name."""
        with self._publishing:
            self._replace(reading(folder))
            self._version = version

    async def close(self) -> None:
        self._closed = True
        await self._fleet.hang_up()
        if self._transport is not None:
            self._transport.close()
        if self._own is not None:
            self._own.stop()

    async def _go_on(self, draft: Draft, session: Session | None, on_tokens: OnTokens | None) -> str | None:
        """Adds to the draft until it ends, or breaks off; the reason if that is a failure."""
        server = self._fleet.server_for(session)
        async with server.gate.place(0 if session is None else session.priority):
            epoch = await self._settled()
            if self._closed:
                raise EngineFailure("the engine is closed; open a new one")
            try:
                return await self._hear(server, epoch, draft, on_tokens)
            except Lost as lost:
                if not self._closed and not await server.lives():
                    self._fleet.take_out(server, str(lost))
                return str(lost)

    async def _settled(self) -> int:
        """The epoch of the weights, when none are on their way; read first, so that it is old rather than too new."""
        epoch = self._epoch
        # Looked at again and again: publish may be called in another thread, which cannot set an asyncio.Event.
        while self._publishing.locked():
            await asyncio.sleep(LOOK)
            epoch = self._epoch
        return epoch

    async def _hear(self, server: Server, epoch: int, draft: Draft, on_tokens: OnTokens | None) -> str | None:
        """Adds what the server streams; what comes after the weights of `epoch` were replaced is theirs no more."""
        version, begun = self._version, len(draft.ids)
        async with aclosing(server.stream(draft.request(self._model, self._ends))) as pieces:
            async for piece in pieces:
                if epoch == self._epoch:
                    version = self._version
                # What was begun by the old weights is finished by them; a call of which nothing has come may not be.
                elif self._in_flight != "finish" or len(draft.ids) == begun:
                    return None
                if is_cut(draft.sampling):
                    piece = await rescored(server, self._model, draft, piece)
                    if epoch != self._epoch:
                        return None  # scored by the new weights, perhaps
                fresh = draft.add(piece, version)
                if fresh and on_tokens is not None:
                    on_tokens(fresh)
                if draft.finish is not None:
                    return None
        return None if epoch != self._epoch else f"{server.address}: the stream ended before the completion"

    def _replace(self, load: Load) -> None:
        servers = list(self._fleet.servers)
        # Before the servers change: nothing that comes from now on may pass for the old weights' own.
        self._epoch += 1

        def send(server: Server) -> None:
            try:
                push(server.address, load, self._in_flight)
            # Whatever the reason, it may still have the old weights, whose tokens must not pass for those of the new.
            except (httpx.TransportError, EngineFailure) as error:
                self._fleet.take_out(server, f"new weights did not reach it: {type(error).__name__} {error}")

        with ThreadPoolExecutor(max(1, len(servers))) as threads:
            list(threads.map(send, servers))
        if not self._fleet.servers:
            raise EngineFailure(f"no vLLM server is left: {'; '.join(self._fleet.lost.values())}")


def _agreed(found: Sequence[Served], context: int) -> str:
    """The name of the model that all servers have."""
    models, most = sorted({each.model for each in found}), min((each.context for each in found), default=0)
    if len(models) != 1 or not 1 < context <= most:
        raise ConfigError(
            f"{len(found)} servers of the models {models} with {most} tokens of context, expected one model with the "
            f"{context} asked for: start them alike, with --max-model-len {context}"
        )
    return models[0]
