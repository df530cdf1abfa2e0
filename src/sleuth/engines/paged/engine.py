"""The embedded engine: it shares the policy's parameters and batches whoever is asking.

A step computes one token of every row that is decoding and a bounded number of given tokens of rows that are new. On a
GPU steps are launched ahead of what is known: stops are looked at in arrears, and what was sampled past one is dropped.
"""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import index
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.paged.budget import pages_for
from sleuth.engines.paged.core import Core
from sleuth.engines.paged.row import Row
from sleuth.engines.paged.runner import Backend, Runner
from sleuth.engines.paged.schedule import EngineStats, Schedule
from sleuth.engines.paged.watch import Watch
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens

# With lockstep, steps between two looks at who is there.
BURST = 4
# With lockstep, seconds after which callers that neither ask nor leave, with no tool call under way, count as stalled.
PATIENCE = 60.0
# Given tokens in one step: as many as keep a GPU busy, and so few that a CPU is done in a moment.
PREFILL_TOKENS = {"cuda": 16384, "cpu": 2048}
# Seconds after which a busy thread lets another one go on.
SWITCH = 1e-4


def _check(model: PreTrainedModel, *, slots: int, context: int, memory: float, prefill_tokens: int) -> None:
    """What no engine can be made with; a run is told the same by its settings."""
    known = getattr(model.config, "max_position_embeddings", None) or context
    # The last token of a context is sampled and never computed.
    if not 1 < context <= known + 1:
        raise ConfigError(
            f"a context of {context} tokens, expected 2 to {known + 1}, for the model has {known} positions; "
            f"lower it with --set agent.context_tokens={known}"
        )
    if slots < 1 or prefill_tokens < 1 or not 0 < memory <= 1:
        raise ConfigError(
            f"slots = {slots}, prefill_tokens = {prefill_tokens}, memory = {memory}; expected one or more of the first "
            "two, and a share of the device's memory"
        )


class _Switching:
    """Lets threads take turns more often than Python does by itself, while any engine steps.

    Every tensor operation gives the interpreter away for a moment. While episodes keep the event loop busy it would
    come back 5 ms later each time, and a GPU would wait for its next step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._engines:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH)
            self._engines += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._engines -= 1
            if not self._engines:
                sys.setswitchinterval(self._usual)


SWITCHING = _Switching()


class PagedEngine:
    """Continuous batching over pages of cached keys and values.

    `memory` is the share of the device's memory that pages may take. With `lockstep`, steps go on only when every
    seated caller is waiting in them: batches then do not depend on how long a search took, and on a CPU a run with the
    same seed gives the same numbers bit for bit. `backend` and `graphs` are what the device asks for, unless they are
    given.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tokens | None,
        *,
        slots: int,
        context: int,
        memory: float = 0.3,
        prefill_tokens: int | None = None,
        lockstep: bool = False,
        patience: float = PATIENCE,
        backend: Backend | None = None,
        graphs: bool | None = None,
    ) -> None:
        device = next(model.parameters()).device
        prefill_tokens = prefill_tokens or PREFILL_TOKENS[device.type]
        _check(model, slots=slots, context=context, memory=memory, prefill_tokens=prefill_tokens)
        pages = pages_for(model, slots=slots, context=context, share=memory, prefill_tokens=prefill_tokens)
        runner = Runner(
            model,
            pages=pages,
            slots=slots,
            context=context,
            prefill_tokens=prefill_tokens,
            backend=backend or ("triton" if device.type == "cuda" else "plain"),
            graphs=device.type == "cuda" if graphs is None else graphs,
        )
        self._watch = Watch(model, tokens)
        self._core = Core(runner, self._watch, partial(Schedule, pages, slots, prefill_tokens), _hand_out)
        self._model, self._context = model, context
        self._lockstep, self._patience = lockstep, patience
        self._stalled: str | None = None
        self._closed = False
        self._arrivals = 0
        self._arrived: deque[Row] = deque()
        self._left: deque[Row] = deque()
        self._sessions: set[Session] = set()
        self._changed = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._turn, self._steps = threading.Lock(), threading.Lock()

    @property
    def stats(self) -> EngineStats:
        """What was computed, reused, dropped and preempted so far."""
        return self._core.stats

    @property
    def pages_held(self) -> int:
        """Pages that belong to rows on their way; 0 when nobody is asking."""
        return self._core.schedule.pages.held

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        session = Session(priority)
        self._sessions.add(session)
        try:
            yield session
        finally:
            self._sessions.remove(session)
            self._changed.set()

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        ids = self._known(ids)
        limit = min(sampling.max_tokens, self._context - len(ids))
        self._start()
        self._arrivals += 1
        order = (session.priority if session is not None else 0, self._arrivals)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        kind = self._watch.kind(sampling.stops)
        row = Row(ids, len(ids), sampling, limit, kind, order, session, on_tokens, future)
        self._arrived.append(row)
        self._changed.set()
        try:
            return await future
        except BaseException:
            self._left.append(row)
            raise
        finally:
            self._watch.leave(kind)

    def publish(self, weights: Mapping[str, Tensor] | None, version: int, *, keep_cache: bool = False) -> None:
        """As the contract says; `keep_cache` reuses keys and values of older weights, which is not exact."""
        core = self._core
        with self._between_steps(), core.runner.after_the_caller(), core.runner.ready():
            self._land()
            if core.runner.moved():
                raise EngineFailure(
                    "the model's parameters moved to other storage after the engine was made; write them in place, "
                    "or make a new engine"
                )
            if weights is not None:
                self._load(weights)
            core.version = version
            self._stalled = None
            if not keep_cache:
                core.schedule.restart()

    async def close(self) -> None:
        self._closed = True
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])
        if self._busy:
            # A driver that was cancelled before it began has told nobody.
            self._fail(asyncio.CancelledError())

    def _start(self) -> None:
        """Makes sure that somebody computes, in the event loop of whoever asks."""
        if self._closed:
            raise EngineFailure("the engine was closed; make a new one")
        if self._stalled is not None:
            # Whoever asked next would wait as long as the others did, in vain.
            raise EngineFailure(self._stalled)
        if self._driver is not None and not self._driver.done():
            theirs = self._driver.get_loop()
            if theirs is asyncio.get_running_loop():
                return
            if theirs.is_running():
                raise EngineFailure("the engine serves another event loop; ask from that one, or make a second engine")
            # That loop stopped without ending its tasks, and nobody waits in it any more.
            self._stopping.set()
            self._fail(asyncio.CancelledError())
        self._changed, self._stopping = asyncio.Event(), threading.Event()
        self._driver = asyncio.create_task(self._drive(self._stopping))

    def _known(self, ids: Sequence[int]) -> list[int]:
        """The prompt as a list; what would break the batch of everybody else is refused here."""
        try:
            known = [*map(index, ids)]
        except TypeError as error:
            raise EngineFailure(f"a prompt of {ids!r}; expected whole numbers") from error
        if not 0 < len(known) < self._context:
            raise EngineFailure(f"a prompt of {len(known)} tokens; expected 1 to {self._context - 1}")
        words = self._model.config.vocab_size
        if min(known) < 0 or max(known) >= words:
            raise EngineFailure(f"a prompt with tokens {min(known)} to {max(known)}; the model knows 0 to {words - 1}")
        return known

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Some of the weights or all, sharded ones gathered one at a time: tied ones need no entry of their own."""
        own = self._model.state_dict()
        if unknown := sorted(weights.keys() - own.keys()):
            raise ValueError(f"the weight {unknown[0]} is published, and the model has none of that name")
        # Found before any is written: half of the new weights would be neither version.
        for name, weight in weights.items():
            if weight.shape != own[name].shape:
                raise ValueError(f"the weight {name} is published as {[*weight.shape]}, expected {[*own[name].shape]}")
        with torch.no_grad():
            for name, weight in weights.items():
                own[name].copy_(_whole(weight, own[name].dtype))

    @property
    def _busy(self) -> bool:
        return bool(self._arrived) or self._core.busy

    async def _drive(self, stopping: threading.Event) -> None:
        """Lets a thread compute while there is something to compute; an error ends every request, not the engine."""
        try:
            while self._busy:
                await self._everyone_here()
                await asyncio.to_thread(self._burst, stopping)
        except BaseException as error:
            stopping.set()
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _everyone_here(self) -> None:
        """With lockstep, waits until every seated caller is asking for tokens; fails where some never will."""
        quiet = False
        while self._lockstep and not self._sessions <= self._asking():
            self._changed.clear()
            try:
                async with asyncio.timeout(self._patience / 2):
                    await self._changed.wait()
                quiet = False
            except TimeoutError:
                idle = not any(session.in_tool() for session in self._sessions)
                # Twice: an event loop that was held up lets everybody run before it looks again.
                if idle and quiet:
                    self._stall()
                quiet = idle

    def _stall(self) -> NoReturn:
        missing = len(self._sessions - self._asking())
        self._stalled = (
            f"in lockstep the engine waits for every episode, and {missing} of {len(self._sessions)} have neither "
            f"asked for tokens nor ended for {self._patience:g} s; give --set engine.lockstep=off"
        )
        raise EngineFailure(self._stalled)

    def _asking(self) -> set[Session]:
        rows = (*self._arrived, *self._core.schedule.rows)
        return {row.session for row in rows if row.session is not None and not row.over}

    def _burst(self, stopping: threading.Event) -> None:
        """Steps, with threads that take turns often; what no future can carry is told as another error."""
        try:
            with SWITCHING:
                self._steps_on(stopping)
        except StopIteration as error:
            raise RuntimeError("the model raised StopIteration") from error

    def _steps_on(self, stopping: threading.Event) -> None:
        """Steps until nothing is left to compute; with lockstep a few, since then it is time to look who is there."""
        steps = 0
        while (steps < BURST or not self._lockstep) and self._busy:
            with self._between_steps(), self._core.runner.ready():
                if stopping.is_set():
                    return
                if not (self._lockstep and steps):
                    self._take_in()
                if self._left:
                    self._core.schedule.remove([self._left.popleft() for _ in range(len(self._left))])
                self._core.step()
            steps += 1

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Alone with the engine. Whoever waits comes next, before the thread that steps takes its next turn."""
        with self._turn:
            self._steps.acquire()
        try:
            yield
        finally:
            self._steps.release()

    def _take_in(self) -> None:
        """Whoever came and left before anybody looked is not taken in: nobody would take it out again."""
        while self._arrived:
            row = self._arrived.popleft()
            if not row.over:
                self._core.schedule.add(row)

    def _land(self) -> None:
        """Before weights change, what the old ones have sampled is taken in; what broke there breaks its requests."""
        try:
            self._core.land()
        except EngineFailure as error:
            self._reset(error)

    def _fail(self, error: BaseException) -> None:
        with self._between_steps():
            rows = [*self._core.schedule.rows]
            if isinstance(error, asyncio.CancelledError) and all(row.over for row in (*self._arrived, *rows)):
                # A loop that ends right after its last completion takes nothing from anybody: the cache stays.
                self._core.schedule.remove(rows)
                # Steps under way are waited for: without its engine, the memory they write is soon somebody else's.
                self._core.land()
            else:
                self._reset(error)

    def _reset(self, error: BaseException) -> None:
        """Ends every request with an EngineFailure, and leaves the engine as after a start."""
        told = describe_out_of_memory(error) or f"{type(error).__name__}: {error}"
        if isinstance(error, EngineFailure):
            told = str(error)
        elif isinstance(error, asyncio.CancelledError):
            told = "the engine was closed, or the event loop ended"
        failure = EngineFailure(f"generation broke: {told}")
        failure.__cause__ = error
        rows = [*self._arrived, *self._core.schedule.rows]
        self._arrived.clear()
        # Told first: what broke may be the device itself, and then it cannot be cleared either.
        for row in rows:
            _soon(row.future.get_loop(), row.fail, failure)
        self._core.reset()


def _whole(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight that is sharded travels in the dtype it is wanted in."""
    if not isinstance(weight, DTensor):
        return weight
    travelling: Any = weight.to(dtype)
    whole: Tensor = travelling.full_tensor()
    return whole


def _hand_out(rows: Sequence[Row]) -> None:
    """Lets listeners hear and delivers what is finished, in the loops that wait for it."""
    for loop in {row.future.get_loop() for row in rows}:
        _soon(loop, _deliver, [row for row in rows if row.future.get_loop() is loop])


def _deliver(rows: Sequence[Row]) -> None:
    for row in rows:
        row.tell()
        row.deliver()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """Calls in the loop's own thread; in a loop that is closed nobody waits any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *arguments)
