"""The engine over vLLM servers: token ids in, token ids and logprobs out, over HTTP.

Supports vLLM 0.26 to 0.32 with --logprobs-mode processed_logprobs, and VLLM_SERVER_DEV_MODE=1 for weight updates.
When a server dies or its weights change, a call keeps its tokens and requests the rest.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.vllm import checks
from sleuth.engines.vllm.client import ServerLost, VllmClient
from sleuth.engines.vllm.completions import PartialCompletion, is_truncated
from sleuth.engines.vllm.server_process import ServerProcess
from sleuth.engines.vllm.weight_sync import InFlight, Load, WeightTransport, load_from_folder, sync_weights
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model.tokens import StopStrings, Tokens
from sleuth.page.document import visible

if TYPE_CHECKING:
    from torch import Tensor

# Seconds.
FIRST_BACKOFF, MAX_BACKOFF = 0.05, 8.0
POLL_INTERVAL = 0.01


class Router:
    """Chooses the server of every call; `lost` maps removed servers to the reason."""

    def __init__(self, clients: Sequence[VllmClient]) -> None:
        self.clients = list(clients)
        self._all = tuple(clients)
        self.lost: dict[str, str] = {}
        self.assigned: dict[Session, VllmClient] = {}

    def choose(self, session: Session | None) -> VllmClient:
        """Return the server that holds the session's prefix cache, or else the least loaded server."""
        if session is not None and session in self.assigned:
            return self.assigned[session]
        self.require_one()
        assigned = list(self.assigned.values())
        chosen = min(self.clients, key=lambda client: (client.slots.load, sum(each is client for each in assigned)))
        if session is not None:
            self.assigned[session] = chosen
        return chosen

    def require_one(self) -> None:
        if not self.clients:
            raise EngineFailure(f"no vLLM server is left: {'; '.join(self.lost.values())}")

    def remove(self, client: VllmClient, reason: str) -> None:
        """Stop using a server; its sessions move to other servers."""
        if client not in self.clients:
            return
        self.clients.remove(client)
        self.lost[client.address] = reason
        self.assigned = {session: each for session, each in self.assigned.items() if each is not client}
        message = f"removed the vLLM server {client.address} ({reason}); {len(self.clients)} left"
        print(visible(message), file=sys.stderr)

    async def disconnect(self) -> None:
        """Close the connections to all servers, including removed servers; the next call reconnects."""
        await asyncio.gather(*(client.disconnect() for client in self._all))


class VllmEngine:
    """Generates with one or more servers, at most `slots` calls to each; call `connect` first.

    `transport` carries published weights to the servers. `in_flight` sets what happens to running requests at
    an update: `finish` completes them on the old weights; `pause` and `abort` resume ours on the new ones, and `abort`
    ends those of other clients. `eos_ids` end a text, like those the server knows. `process` is stopped by
    `close`. A call that gets no token for `token_timeout` seconds is retried, for twice that time.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tokens: Tokens,
        *,
        context: int,
        slots: int = 256,
        token_timeout: float = 120.0,
        eos_ids: Sequence[int] = (),
        transport: WeightTransport | None = None,
        in_flight: InFlight = "pause",
        process: ServerProcess | None = None,
    ) -> None:
        clients = [VllmClient(each, slots=slots, token_timeout=token_timeout) for each in dict.fromkeys(addresses)]
        self._router = Router(clients)
        self._stops, self._context, self._eos_ids = StopStrings(tokens), context, tuple(eos_ids)
        self._transport, self._in_flight, self._process = transport, in_flight, process
        self._version, self._epoch, self._retry_timeout = 0, 0, 2 * token_timeout
        self._publishing = threading.Lock()
        self._closed = False
        self._model = ""

    async def connect(self) -> Self:
        """Check the servers and the model that they serve."""
        try:
            self._model = await checks.check_servers(self._router.clients, self._context)
        finally:
            # Later calls may run in another event loop.
            await self._router.disconnect()
        return self

    @property
    def lost(self) -> Mapping[str, str]:
        """Reasons for the removal of servers, by address."""
        return dict(self._router.lost)

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        session = Session(priority)
        try:
            yield session
        finally:
            self._router.assigned.pop(session, None)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        partial = PartialCompletion(ids, sampling, context=self._context, stops=self._stops)
        clock = asyncio.get_running_loop().time
        failures, deadline = 0, 0.0
        while partial.finish is None:
            before, started = len(partial.ids), clock()
            reason = await self._continue(partial, session, on_tokens)
            if len(partial.ids) > before or reason is None:
                failures = 0
                continue
            failures += 1
            deadline = started + self._retry_timeout if failures == 1 else deadline
            if clock() >= deadline:
                raise EngineFailure(
                    f"no token in {failures} attempts and {self._retry_timeout:g} s; the last one failed: {reason}"
                )
            backoff = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 32))
            await asyncio.sleep(min(backoff, deadline - clock()))
        return partial.completion()

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        if weights is not None and self._transport is None:
            raise EngineFailure("weights cannot be published to vLLM servers without a transport; pass one to connect")
        with self._publishing:
            if weights is not None and self._transport is not None:
                self._update_weights(self._transport.prepare(weights, version))
            self._version = version

    def require_tied_head(self, weights: "Mapping[str, Tensor]", embedding: str) -> None:
        """Raise ConfigError if a tied head ignores updates of the embedding; leaves shifted weights on the servers.

        Shifts the embedding by one row, so that each token takes its predecessor's meaning; the caller must publish the
        weights again. vLLM on a CPU keeps a copy of the tied head, so its outputs do not shift with the inputs.
        """
        addresses, prompt = [client.address for client in self._router.clients], checks.HEAD_PROMPT
        before = {each: checks.request_top_logprobs(each, self._model, prompt) for each in addresses}
        self.publish({**weights, embedding: weights[embedding].detach().roll(1, 0)}, self._version)
        for address in addresses:
            after = checks.request_top_logprobs(address, self._model, prompt + 1)
            if not checks.head_followed(before[address], after, len(weights[embedding])):
                raise ConfigError(
                    f"{address} keeps its old output head when the tied embedding is updated, as vLLM on a CPU "
                    "does; serve the model on a GPU, or use engine.kind = paged"
                )

    def load(self, folder: Path, version: int = 0) -> None:
        """Load the weights of a model folder that the servers can read at the same path."""
        with self._publishing:
            self._update_weights(load_from_folder(folder))
            self._version = version

    async def close(self) -> None:
        self._closed = True
        await self._router.disconnect()
        if self._transport is not None:
            self._transport.close()
        if self._process is not None:
            self._process.stop()

    async def _continue(
        self, partial: PartialCompletion, session: Session | None, on_tokens: OnTokens | None
    ) -> str | None:
        """Extend the completion until it finishes or is interrupted; return the reason for a failure, or None."""
        client = self._router.choose(session)
        async with client.slots.acquire(0 if session is None else session.priority):
            # Read before the check: an outdated epoch is safe, one that is too new is not.
            epoch = self._epoch
            # Polled, because publish may run in another thread, which cannot set an asyncio.Event.
            while self._publishing.locked():
                await asyncio.sleep(POLL_INTERVAL)
                epoch = self._epoch
            if self._closed:
                raise EngineFailure("the engine is closed; create a new one")
            try:
                return await self._stream(client, epoch, partial, on_tokens)
            except ServerLost as lost:
                if not self._closed and not await client.is_healthy():
                    self._router.remove(client, str(lost))
                return str(lost)

    async def _stream(
        self, client: VllmClient, epoch: int, partial: PartialCompletion, on_tokens: OnTokens | None
    ) -> str | None:
        """Add streamed tokens until a weight update outdates `epoch`; return the reason for a failure, or None."""
        version, started_at = self._version, len(partial.ids)
        async with aclosing(client.stream(partial.request_body(self._model, self._eos_ids))) as chunks:
            async for chunk in chunks:
                if epoch == self._epoch:
                    version = self._version
                # With `finish`, calls complete on the old weights; a call without tokens may not have begun on them.
                elif self._in_flight != "finish" or len(partial.ids) == started_at:
                    return None
                if is_truncated(partial.sampling):
                    chunk = await client.rescore(self._model, partial, chunk)
                    if epoch != self._epoch:
                        return None  # possibly scored by the new weights
                new = partial.add(chunk, version)
                if new and on_tokens is not None:
                    on_tokens(new)
                if partial.finish is not None:
                    return None
        return None if epoch != self._epoch else f"{client.address}: the stream ended before the completion"

    def _update_weights(self, load: Load) -> None:
        clients = list(self._router.clients)
        # Before the servers change, so that no later token is attributed to the old weights.
        self._epoch += 1

        def update(client: VllmClient) -> None:
            try:
                sync_weights(client.address, load, self._in_flight)
            # After either error, this server may still have the old weights.
            except (httpx.TransportError, EngineFailure) as error:
                self._router.remove(client, f"weight update failed: {type(error).__name__} {error}")

        with ThreadPoolExecutor(max(1, len(clients))) as threads:
            list(threads.map(update, clients))
        self._router.require_one()
