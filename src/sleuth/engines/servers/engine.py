"""The engine over servers of one kind: token ids in, token ids and logprobs out, over HTTP.

When a server dies or its weights change, a call keeps its tokens and requests the rest.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Self

import httpx

from sleuth.config.engine import InFlight
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.servers import checks
from sleuth.engines.servers.client import ServerClient, ServerLost
from sleuth.engines.servers.completion import PartialCompletion
from sleuth.engines.servers.dialect import ADAPTER_NAME, Dialect
from sleuth.engines.servers.process import ServerProcess
from sleuth.engines.servers.weights import Load, WeightTransport, sync_weights
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

    def __init__(self, clients: Sequence[ServerClient], kind: str) -> None:
        self._kind = kind
        self.clients = list(clients)
        self._all = tuple(clients)
        self.lost: dict[str, str] = {}
        self.assigned: dict[Session, ServerClient] = {}

    def choose(self, session: Session | None) -> ServerClient:
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
            raise EngineFailure(f"no {self._kind} server is left: {'; '.join(self.lost.values())}")

    def remove(self, client: ServerClient, reason: str) -> None:
        """Stop using a server; its sessions move to other servers."""
        if client not in self.clients:
            return
        self.clients.remove(client)
        self.lost[client.address] = reason
        self.assigned = {session: each for session, each in self.assigned.items() if each is not client}
        message = f"removed the {self._kind} server {client.address} ({reason}); {len(self.clients)} left"
        print(visible(message), file=sys.stderr)

    async def disconnect(self) -> None:
        """Close the connections to all servers, including removed servers; the next call reconnects."""
        await asyncio.gather(*(client.disconnect() for client in self._all))


class ServerEngine:
    """Generates with one or more servers, at most `slots` calls to each; call `connect` first.

    `transport` carries published weights to the servers. `in_flight` sets what happens to running requests at
    an update: `finish` completes them on the old weights; `pause` and `abort` resume ours on the new ones, and `abort`
    ends those of other clients. `eos_ids` end a text, like those the server knows. `process` is stopped by
    `close`. A call that gets no token for `token_timeout` seconds is retried, for twice that time.
    With `adapter`, published weights are a LoRA adapter, with which the servers sample from then on.
    A subclass sets the kind of server, and the ways other than through a folder to send weights to it.
    """

    dialect: Dialect
    transports: Mapping[str, Callable[[], WeightTransport]]

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
        adapter: bool = False,
    ) -> None:
        clients = [
            ServerClient(each, self.dialect, slots=slots, token_timeout=token_timeout)
            for each in dict.fromkeys(addresses)
        ]
        self._router = Router(clients, self.dialect.name)
        self._vocabulary = None if self.dialect.checks_prompts else len(tokens.tokenizer)
        self._stops, self._context, self._eos_ids = StopStrings(tokens), context, tuple(eos_ids)
        self._transport, self._in_flight, self._process = transport, in_flight, process
        self._version, self._epoch, self._retry_timeout = 0, 0, 2 * token_timeout
        self._publishing = threading.Lock()
        self._closed = False
        self._model, self._adapter = "", adapter
        self._name = f"sleuth-{token_hex(4)}"  # distinguishes weights from those of other clients

    async def connect(self) -> Self:
        """Check the servers and the model that they serve."""
        try:
            self._model = await checks.check_servers(self._router.clients, self._context)
        finally:
            # Later calls may run in another event loop.
            await self._router.disconnect()
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers in use."""
        return tuple(client.address for client in self._router.clients)

    @property
    def is_alive(self) -> bool:
        """Whether a server is left, and the one that this engine started, if any, still runs."""
        return bool(self._router.clients) and (self._process is None or self._process.is_running)

    def weights_name(self, version: int) -> str:
        """The name under which this engine sends a version to servers that report one."""
        return f"{self._name}-{version}"

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
        partial = PartialCompletion(
            ids,
            sampling,
            context=self._context,
            stops=self._stops,
            eos_ids=self._eos_ids,
            finds_stops=self.dialect.finds_stops,
            vocabulary=self._vocabulary,
        )
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
        if weights is None:
            with self._publishing:
                self._version = version
            return
        with self.updating(version):
            self.send(weights, version)

    @contextmanager
    def updating(self, version: int) -> Iterator[None]:
        """Hold back requests while the servers switch to a version; those in flight continue as `in_flight` says."""
        with self._publishing:
            # Before the servers change, so that no later token is attributed to the old weights.
            self._epoch += 1
            yield
            self._version = version

    def send(self, weights: "Mapping[str, Tensor]", version: int) -> None:
        """Send a version to all servers, inside `updating`; raises EngineFailure if it reaches none."""
        if self._transport is None:
            raise EngineFailure(
                f"weights cannot be published to {self.dialect.name} servers without a transport; pass one to connect"
            )
        self._update_weights(self._transport.prepare(weights, version), version)
        self._use_adapter()

    def adopt(self, lost: Mapping[str, str], weights: str) -> None:
        """Follow an update by another process: leave out the servers that it lost; the others have its `weights`."""
        self.remove(lost)
        self._use_adapter()
        for client in self._router.clients:
            client.weights = weights if client.weights is not None else None

    def remove(self, lost: Mapping[str, str]) -> None:
        """Stop using servers that another process lost."""
        for client in list(self._router.clients):
            if client.address in lost:
                self._router.remove(client, lost[client.address])
        self._router.require_one()

    def require_tied_head(self, weights: "Mapping[str, Tensor]", embedding: str) -> None:
        """Raise ConfigError if a tied head ignores updates of the embedding; leaves shifted weights on the servers.

        Shifts the embedding by one row, so that each token takes its predecessor's meaning; the caller must publish the
        weights again. vLLM on a CPU keeps a copy of the tied head, so its outputs do not shift with the inputs.
        """
        self.publish(weights, self._version)  # the servers may have others
        addresses, prompt = self.addresses, checks.HEAD_PROMPT
        before = {each: checks.request_top_logprobs(each, self.dialect, self._model, prompt) for each in addresses}
        self.publish({**weights, embedding: weights[embedding].detach().roll(1, 0)}, self._version)
        for address in addresses:
            after = checks.request_top_logprobs(address, self.dialect, self._model, prompt + 1)
            if not checks.head_followed(before[address], after, len(weights[embedding])):
                raise ConfigError(
                    f"{address} keeps its old output head when the tied embedding is updated, as vLLM on a CPU does; "
                    "serve the model on a GPU, or use engine.kind = paged"
                )

    def load(self, folder: Path, version: int = 0) -> None:
        """Load the weights of a model folder that the servers can read at the same path."""
        with self.updating(version):
            self._update_weights(lambda control: control.load_folder(folder), version)

    async def close(self) -> None:
        self._closed = True
        await self._router.disconnect()
        self.stop()

    def stop(self) -> None:
        """Stop the server that this engine started, if any, and free what was kept for the servers."""
        self._closed = True
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
        self, client: ServerClient, epoch: int, partial: PartialCompletion, on_tokens: OnTokens | None
    ) -> str | None:
        """Add streamed tokens until a weight update outdates `epoch`; return the reason for a failure, or None."""
        version, weights, started_at = self._version, client.weights, len(partial.ids)
        async with aclosing(client.stream(self.dialect.request_body(partial, self._model))) as chunks:
            async for chunk in chunks:
                if epoch == self._epoch:
                    version = self._version
                # With `finish`, calls complete on the old weights; a call without tokens may not have begun on them.
                elif self._in_flight != "finish" or len(partial.ids) == started_at:
                    return None
                if chunk.ids and chunk.weights != weights:
                    reason = f"it samples with the weights {chunk.weights!r}, expected {weights!r}: another client"
                    self._router.remove(client, f"{reason} updated them")
                    return self._router.lost[client.address]
                scored = await self.dialect.rescore(client.request, self._model, partial, chunk)
                if scored is not chunk and epoch != self._epoch:
                    return None  # possibly scored by the new weights
                new = partial.add(scored, version)
                if new and on_tokens is not None:
                    on_tokens(new)
                if partial.finish is not None:
                    return None
        return None if epoch != self._epoch else f"{client.address}: the stream ended before the completion"

    def _use_adapter(self) -> None:
        if self._adapter:
            self._model = ADAPTER_NAME

    def _update_weights(self, load: Load, version: int) -> None:
        clients, name = list(self._router.clients), self.weights_name(version)

        def update(client: ServerClient) -> None:
            try:
                sync_weights(client.address, self.dialect, load, self._in_flight, name)
                client.weights = name if client.weights is not None else None
            # After either error, this server may still have the old weights.
            except (httpx.TransportError, EngineFailure) as error:
                self._router.remove(client, f"weight update failed: {type(error).__name__} {error}")

        with ThreadPoolExecutor(max(1, len(clients))) as threads:
            list(threads.map(update, clients))
        self._router.require_one()
