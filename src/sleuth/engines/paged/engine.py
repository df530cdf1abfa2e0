"""The embedded engine: it shares the policy's parameters and batches whoever is asking.

Work goes in bursts of a few decode steps. Between two bursts finished sequences are handed back and waiting ones
join in the order of their seats, so a finished sequence makes room for the next.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Finish, Listener, Sampling, Seat
from sleuth.engines.paged.pool import Cached, Pool
from sleuth.engines.paged.row import Row, batches
from sleuth.engines.paged.sampler import sample, uniforms
from sleuth.engines.paged.stops import Stops
from sleuth.errors import EngineFailure
from sleuth.model import head
from sleuth.model.tokens import Tokens

BURST = 4


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
            self._pool.leave(seat)
            self._changed.set()

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, seat: Seat | None = None, listen: Listener | None = None
    ) -> Completion:
        room = self._room(ids)
        self._arrivals += 1
        order = (seat.order if seat is not None else 0, self._arrivals)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        random = uniforms(sampling.seed, min(sampling.max_tokens, room))
        self._waiting.append(Row(list(ids), len(ids), sampling, order, seat, listen, future, random))
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._changed = asyncio.Event()
            self._driver = asyncio.create_task(self._drive())
        return await future

    def publish(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        with self._weights:
            if weights is not None:
                self._load(weights)
            self._version = version
            self._pool.forget()
            for row in self._running:
                row.computed = 0

    async def close(self) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])

    def _room(self, ids: Sequence[int]) -> int:
        """How many tokens fit after these; what would break the batch of everybody else is refused here."""
        if not ids or len(ids) >= self._pool.context:
            raise EngineFailure(f"a prompt of {len(ids)} tokens; expected 1 to {self._pool.context - 1}")
        known = self._model.config.vocab_size
        if min(ids) < 0 or max(ids) >= known:
            raise EngineFailure(f"a prompt with tokens {min(ids)} to {max(ids)}; the model knows 0 to {known - 1}")
        return self._pool.context - len(ids)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Some of the weights or all: tied ones need no entry of their own."""
        if unknown := sorted(weights.keys() - self._model.state_dict().keys()):
            raise ValueError(f"the weight {unknown[0]} is published, and the model has none of that name")
        self._model.load_state_dict(weights, strict=False)

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                await self._everyone_here()
                self._admit()
                await asyncio.to_thread(self._burst)
                self._hand_back()
                await asyncio.sleep(0)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _everyone_here(self) -> None:
        """With lockstep, waits until every seated caller is asking for tokens."""
        while self._lockstep and not self._seats <= self._asking():
            self._changed.clear()
            await self._changed.wait()

    def _asking(self) -> set[Seat]:
        rows = (*self._waiting, *self._running)
        return {row.seat for row in rows if row.seat is not None and not row.future.done()}

    def _admit(self) -> None:
        """Seats as many waiting rows as there are slots, lowest order first."""
        self._waiting.sort(key=lambda row: row.order)
        while self._waiting:
            row = self._waiting[0]
            if row.future.done():
                self._waiting.pop(0)
                continue
            # A seat may be left while a request made from it is still on its way.
            taken = self._pool.take(row.ids, row.seat if row.seat in self._seats else None)
            if taken is None:
                return
            row.slot, row.computed = taken
            self._running.append(self._waiting.pop(0))

    def _hand_back(self) -> None:
        """Lets listeners hear, delivers what is finished, drops what was cancelled."""
        for row in self._running:
            row.tell()
            row.deliver()
        # Only now, since a listener may end the request of another.
        for row in self._running:
            if row.future.done():
                self._pool.give_back(row.slot)
        self._running = [row for row in self._running if not row.future.done()]

    def _fail(self, error: BaseException) -> None:
        """Ends every request with an EngineFailure, and leaves the engine as after a start."""
        rows = (*self._running, *self._waiting)
        self._running, self._waiting = [], []
        # When the driver is cancelled its burst goes on in a thread; what that still writes must not outlive clearing.
        with self._weights:
            self._pool.clear()
        for row in rows:
            told = str(error) if isinstance(error, EngineFailure) else f"{type(error).__name__}: {error}"
            failure = EngineFailure(f"generation broke: {told}")
            failure.__cause__ = error
            row.fail(failure)

    def _burst(self) -> None:
        """A few decode steps; rows that have more than one token to compute catch up first."""
        with self._weights, torch.inference_mode(), _evaluating(self._model):
            for _ in range(BURST):
                rows = [row for row in self._running if row.finish is None]
                if not rows:
                    return
                for batch in batches(rows):
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
            if not isfinite(logprob):
                raise EngineFailure(f"a logprob is {logprob}: the weights, or what they computed, are not finite")
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
        projection = head.projection(self._model)
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


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Dropout and checkpointing are off while the engine computes, and afterwards as the trainer left them."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _end_ids(model: PreTrainedModel, tokens: Tokens) -> frozenset[int]:
    """The ids that end a text: those the model's generation settings name, and the tokenizer's own."""
    named = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*listed, tokens.end) if isinstance(token, int))
