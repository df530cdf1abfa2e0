"""The embedded engine: it shares the policy's parameters and batches whoever is asking.

Work goes in bursts of a few decode steps. Between two bursts finished sequences are handed back and waiting ones
join in the order of their seats, so a finished sequence makes room for the next.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Finish, Listener, Sampling, Seat
from sleuth.engines.paged.pool import Cached, Pool
from sleuth.engines.paged.sampler import sample, uniforms
from sleuth.engines.paged.stops import Stops
from sleuth.errors import EngineFailure
from sleuth.model import head
from sleuth.model.tokens import Tokens

BURST = 4
PREFILL_TOKENS = 8192


@dataclass(slots=True, eq=False)
class Row:
    """A request: its tokens so far, and where its keys and values are."""

    ids: list[int]
    given: int
    sampling: Sampling
    order: tuple[int, int]
    seat: Seat | None
    listen: Listener | None
    future: "asyncio.Future[Completion]"
    random: np.ndarray
    slot: int = -1
    computed: int = 0
    heard: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.given :]

    def completion(self) -> Completion:
        assert self.finish is not None  # noqa: S101  asked only when it has finished
        return Completion(tuple(self.sampled), tuple(self.logprobs), tuple(self.versions), self.finish, self.stop)


class Paged:
    """Continuous batching over a pool of cached keys and values.

    With `lockstep`, a burst starts only when every seated caller is waiting in it. Batches then do not depend on how
    long a search took, and a run with the same seed gives the same numbers bit for bit.
    """

    def __init__(
        self, model: PreTrainedModel, tokens: Tokens, *, slots: int, context: int, lockstep: bool = False
    ) -> None:
        parameter = next(model.parameters())
        self._model = model
        self._pool = Pool(model.config, slots, context, parameter.device, parameter.dtype)
        self._stops = Stops(tokens)
        self._ends = _end_ids(model, tokens)
        self._lockstep = lockstep
        self._version = 0
        self._arrivals = 0
        self._seats: set[Seat] = set()
        self._inside: set[Seat] = set()
        self._waiting: list[Row] = []
        self._running: list[Row] = []
        self._changed = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._weights = threading.Lock()

    @contextmanager
    def seat(self, order: int) -> Iterator[Seat]:
        seat = Seat(order)
        self._seats.add(seat)
        try:
            yield seat
        finally:
            self._seats.remove(seat)
            self._inside.discard(seat)
            self._pool.leave(seat)
            self._changed.set()

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, seat: Seat | None = None, listen: Listener | None = None
    ) -> Completion:
        if not ids or len(ids) >= self._pool.context:
            raise EngineFailure(f"a prompt of {len(ids)} tokens; expected 1 to {self._pool.context - 1}")
        self._arrivals += 1
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        order = (seat.order if seat is not None else 0, self._arrivals)
        random = uniforms(sampling.seed, sampling.max_tokens) if sampling.temperature else np.zeros(sampling.max_tokens)
        self._waiting.append(Row(list(ids), len(ids), sampling, order, seat, listen, future, random))
        if seat is not None:
            self._inside.add(seat)
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._changed = asyncio.Event()
            self._driver = asyncio.create_task(self._drive())
        return await future

    def publish(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        with self._weights:
            if weights is not None:
                self._model.load_state_dict(weights, strict=False)
            self._version = version
            self._pool.forget()
            for row in self._running:
                row.computed = 0

    async def close(self) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                await self._everyone_seated()
                self._admit()
                await asyncio.to_thread(self._burst)
                self._hand_back()
                await asyncio.sleep(0)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _everyone_seated(self) -> None:
        while self._lockstep and len(self._inside) < len(self._seats):
            self._changed.clear()
            await self._changed.wait()

    def _admit(self) -> None:
        """Seats as many waiting rows as there are slots, lowest order first."""
        self._waiting.sort(key=lambda row: row.order)
        while self._waiting:
            row = self._waiting[0]
            if row.future.done():
                self._waiting.pop(0)
                continue
            taken = self._pool.take(row.ids, row.seat)
            if taken is None:
                return
            row.slot, row.computed = taken
            self._running.append(self._waiting.pop(0))

    def _hand_back(self) -> None:
        """Delivers what is finished, lets listeners hear, drops what was cancelled."""
        for row in self._running:
            if row.listen is not None and len(row.ids) > row.given + row.heard:
                row.listen(row.sampled[row.heard :])
                row.heard = len(row.sampled)
            if row.finish is not None and not row.future.done():
                row.future.set_result(row.completion())
        for row in self._running:
            if row.future.done():
                self._pool.give_back(row.slot)
                if row.seat is not None:
                    self._inside.discard(row.seat)
        self._running = [row for row in self._running if not row.future.done()]

    def _fail(self, error: BaseException) -> None:
        for row in (*self._running, *self._waiting):
            if not row.future.done():
                failure = EngineFailure(f"generation broke: {type(error).__name__}: {error}")
                failure.__cause__ = error
                row.future.set_exception(failure)
        self._running, self._waiting = [], []
        self._inside.clear()
        self._pool.clear()

    def _burst(self) -> None:
        """A few decode steps; rows that have more than one token to compute catch up first."""
        with self._weights, torch.inference_mode():
            for _ in range(BURST):
                rows = [row for row in self._running if row.finish is None]
                if not rows:
                    return
                for batch in _batches(rows):
                    self._advance(batch)

    def _advance(self, rows: Sequence[Row]) -> None:
        """Computes what each row has not computed yet, and samples its next token."""
        fresh = [row.ids[row.computed :] for row in rows]
        layout = Cached(
            self._pool, [row.slot for row in rows], [row.computed for row in rows], [len(new) for new in fresh]
        )
        logits_RV = self._logits(torch.tensor([token for new in fresh for token in new]), layout)
        temperature_R = torch.tensor([row.sampling.temperature for row in rows], device=logits_RV.device)
        uniform_R = torch.tensor([row.random[len(row.logprobs)] for row in rows], device=logits_RV.device)
        token_R, logprob_R = sample(logits_RV, temperature_R, uniform_R)
        for row, new, token, logprob in zip(rows, fresh, token_R.tolist(), logprob_R.tolist(), strict=True):
            self._pool.held[row.slot].extend(new)
            row.computed += len(new)
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self._version)
            self._judge(row)

    def _logits(self, ids_N: Tensor, layout: Cached) -> Tensor:
        device = layout.positions_N.device
        hidden = self._model.base_model(
            input_ids=ids_N.to(device)[None], position_ids=layout.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        projection = self._model.get_output_embeddings()
        assert isinstance(projection, torch.nn.Linear)  # noqa: S101  checked when the model is loaded
        return head.logits(hidden[layout.last_R], projection.weight, projection.bias)

    def _judge(self, row: Row) -> None:
        """Ends a row whose newest token is its last."""
        row.stop = self._stops.matched(row.ids, row.given, row.sampling.stops)
        if row.stop is not None:
            row.finish = Finish.STOP
        elif row.ids[-1] in self._ends:
            row.finish = Finish.END
        elif len(row.logprobs) >= row.sampling.max_tokens:
            row.finish = Finish.LENGTH
        elif len(row.ids) >= self._pool.context:
            row.finish = Finish.CONTEXT


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that decode together, after the rows that catch up, in batches of like length and bounded size."""
    decoding = [row for row in rows if len(row.ids) - row.computed == 1]
    batch: list[Row] = []
    for row in sorted(
        (row for row in rows if len(row.ids) - row.computed > 1), key=lambda row: len(row.ids) - row.computed
    ):
        if batch and (len(batch) + 1) * (len(row.ids) - row.computed) > PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
    if decoding:
        yield sorted(decoding, key=lambda row: row.slot)


def _end_ids(model: PreTrainedModel, tokens: Tokens) -> frozenset[int]:
    """The ids that end a text: those the model's generation settings name, and the tokenizer's own."""
    named = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*listed, tokens.end) if isinstance(token, int))
