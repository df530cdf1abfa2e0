"""The embedded engine: shares the policy's parameters and batches all callers continuously.

A step decodes one token of every running request and prefills a bounded number of tokens of new ones. On a GPU steps
are launched ahead: stops are detected a few steps late, and tokens sampled past them are dropped.
"""

import asyncio
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.paged.core import EngineCore, StopChecker
from sleuth.engines.paged.kv_cache import count_pages
from sleuth.engines.paged.model_runner import Backend, ModelRunner
from sleuth.engines.paged.request import Request
from sleuth.engines.paged.scheduler import EngineStats, Scheduler
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens

LOCKSTEP_BURST = 4  # steps between two checks that all sessions are waiting
STALL_TIMEOUT = 60.0  # seconds that lockstep waits for a session that neither sends a request nor runs a tool
PREFILL_TOKENS = {"cuda": 16384, "cpu": 2048}  # per step: enough to fill a GPU, few enough for a CPU
SWITCH_INTERVAL = 1e-4  # seconds


class _FastThreadSwitching:
    """Shortens Python's thread switch interval while any engine steps.

    Every tensor operation releases the GIL for a moment. While episodes keep the event loop busy, the
    engine would get it back 5 ms later each time, and the GPU would be idle.
    """

    _lock = threading.Lock()
    _engines = 0
    _default = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._engines:
                self._default = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_INTERVAL)
            self._engines += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._engines -= 1
            if not self._engines:
                sys.setswitchinterval(self._default)


FAST_THREAD_SWITCHING = _FastThreadSwitching()


class PagedEngine:
    """Continuous batching over a paged key/value cache.

    `memory` is the share of the device's memory for pages. With `lockstep`, steps run only while every session waits
    for tokens: batches then do not depend on tool latency, and runs on a CPU are reproducible bit for bit. `backend`
    and `graphs` default to what the device supports.
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
        stall_timeout: float = STALL_TIMEOUT,
        backend: Backend | None = None,
        graphs: bool | None = None,
    ) -> None:
        device = next(model.parameters()).device
        prefill_tokens = prefill_tokens or PREFILL_TOKENS[device.type]
        positions = getattr(model.config, "max_position_embeddings", None) or context
        # The last token of a context is sampled but never computed.
        if not 1 < context <= positions + 1:
            raise ConfigError(
                f"the context is {context} tokens, expected 2 to {positions + 1}, because the model has {positions} "
                f"positions; lower it with --set agent.context_tokens={positions}"
            )
        if slots < 1 or prefill_tokens < 1 or not 0 < memory <= 1:
            raise ConfigError(
                f"slots = {slots}, prefill_tokens = {prefill_tokens}, memory = {memory}; expected slots and "
                "prefill_tokens of at least 1, and a memory share above 0 and at most 1"
            )
        pages = count_pages(model, slots=slots, context=context, share=memory, prefill_tokens=prefill_tokens)
        runner = ModelRunner(
            model,
            pages=pages,
            slots=slots,
            context=context,
            prefill_tokens=prefill_tokens,
            backend=backend or ("triton" if device.type == "cuda" else "torch"),
            graphs=device.type == "cuda" if graphs is None else graphs,
        )
        self._stop_checker = StopChecker(model, tokens)
        new_scheduler = partial(Scheduler, pages, slots, prefill_tokens)
        self._core = EngineCore(runner, self._stop_checker, new_scheduler, _notify_callers)
        self._model, self._context = model, context
        self._lockstep, self._stall_timeout = lockstep, stall_timeout
        self._stalled: str | None = None
        self._closed = False
        self._arrivals = 0
        self._arrived: deque[Request] = deque()
        self._abandoned: deque[Request] = deque()
        self._sessions: set[Session] = set()
        self._changed = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._stopping = threading.Event()
        self._turn, self._stepping = threading.Lock(), threading.Lock()

    @property
    def stats(self) -> EngineStats:
        """Cumulative counts of tokens reused, prefilled, sampled and dropped past a stop, and of preempted requests."""
        return self._core.scheduler.stats

    @property
    def pages_in_use(self) -> int:
        """Pages held by running requests; 0 when idle."""
        return self._core.scheduler.pages.in_use

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
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        ids = self._checked_prompt(ids)
        max_new = min(sampling.max_tokens, self._context - len(ids))
        self._ensure_driver()
        self._arrivals += 1
        priority = (session.priority if session is not None else 0, self._arrivals)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        stop_class = self._stop_checker.acquire(sampling.stops)
        request = Request(ids, len(ids), sampling, max_new, stop_class, priority, session, on_tokens, future)
        self._arrived.append(request)
        self._changed.set()
        try:
            return await future
        except BaseException:
            self._abandoned.append(request)
            raise
        finally:
            self._stop_checker.release(stop_class)

    def publish(self, weights: Mapping[str, Tensor] | None, version: int, *, keep_cache: bool = False) -> None:
        """See Engine.publish; `keep_cache` reuses keys and values of older weights, which is inexact."""
        core = self._core
        with self._between_steps(), core.runner.ordered_with_caller(), core.runner.inference():
            # Tokens in flight belong to the old weights.
            try:
                core.receive()
            except EngineFailure as error:
                self._reset(error)
            if core.runner.parameters_moved():
                raise EngineFailure(
                    "the model's parameters moved to other storage after the engine was created; update them in "
                    "place, or create a new engine"
                )
            if weights is not None:
                self._load(weights)
            core.version = version
            self._stalled = None
            if not keep_cache:
                core.scheduler.restart()

    async def close(self) -> None:
        self._closed = True
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])
        if self._busy:
            # A driver that was cancelled before it started has not notified the callers.
            self._fail(asyncio.CancelledError())

    def _ensure_driver(self) -> None:
        if self._closed:
            raise EngineFailure("the engine is closed; create a new one")
        if self._stalled is not None:
            # A new caller would stall in the same way.
            raise EngineFailure(self._stalled)
        if self._driver is not None and not self._driver.done():
            loop = self._driver.get_loop()
            if loop is asyncio.get_running_loop():
                return
            if loop.is_running():
                raise EngineFailure("the engine serves another event loop; call it there, or create a second engine")
            # That loop stopped without ending its tasks, so none of its callers is waiting any more.
            self._stopping.set()
            self._fail(asyncio.CancelledError())
        self._changed, self._stopping = asyncio.Event(), threading.Event()
        self._driver = asyncio.create_task(self._drive(self._stopping))

    def _checked_prompt(self, ids: Sequence[int]) -> "array[int]":
        """Pack a prompt, and reject one that would break the whole batch."""
        try:
            prompt = array("i", ids)
        except (TypeError, OverflowError) as error:
            raise EngineFailure(f"the prompt is {ids!r}, expected integers") from error
        if not 0 < len(prompt) < self._context:
            raise EngineFailure(f"the prompt has {len(prompt)} tokens, expected 1 to {self._context - 1}")
        prompt_L, vocabulary = np.array(prompt), self._model.config.vocab_size
        lowest, highest = prompt_L.min(), prompt_L.max()
        if lowest < 0 or highest >= vocabulary:
            raise EngineFailure(f"the prompt has token ids from {lowest} to {highest}, expected 0 to {vocabulary - 1}")
        return prompt

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the given weights into the model, gathering sharded ones one at a time; tied weights need no entry."""
        own = self._model.state_dict()
        if unknown := sorted(weights.keys() - own.keys()):
            raise ValueError(f"cannot publish {unknown[0]}: the model has no weight of that name")
        # Checked before anything is written, so that a failure cannot leave a mix of two versions.
        for name, weight in weights.items():
            if weight.shape != own[name].shape:
                raise ValueError(f"cannot publish {name} of shape {[*weight.shape]}, expected {[*own[name].shape]}")
        with torch.no_grad():
            for name, weight in weights.items():
                if isinstance(weight, DTensor):
                    # Gathered in the target dtype, which is smaller.
                    converted: Any = weight.to(own[name].dtype)
                    weight = converted.full_tensor()
                own[name].copy_(weight)

    @property
    def _busy(self) -> bool:
        return bool(self._arrived) or self._core.busy

    async def _drive(self, stopping: threading.Event) -> None:
        """Run steps in a thread while there is work; an error fails every request but not the engine."""
        try:
            while self._busy:
                await self._wait_for_sessions()
                await asyncio.to_thread(self._run_steps, stopping)
        except BaseException as error:
            stopping.set()
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _wait_for_sessions(self) -> None:
        """In lockstep, wait until every session has a request; raise EngineFailure if the sessions are stalled."""
        was_idle = False
        while self._lockstep and not self._sessions <= self._waiting_sessions():
            self._changed.clear()
            try:
                async with asyncio.timeout(self._stall_timeout / 2):
                    await self._changed.wait()
                was_idle = False
            except TimeoutError:
                idle = not any(session.in_tool() for session in self._sessions)
                # Checked twice: if the event loop was blocked, every episode gets to run before the second check.
                if idle and was_idle:
                    missing = len(self._sessions - self._waiting_sessions())
                    self._stalled = (
                        f"lockstep stalled: {missing} of {len(self._sessions)} episodes have neither requested tokens "
                        f"nor ended for {self._stall_timeout:g} s; use --set engine.lockstep=off"
                    )
                    raise EngineFailure(self._stalled) from None
                was_idle = idle

    def _waiting_sessions(self) -> set[Session]:
        requests = (*self._arrived, *self._core.scheduler.requests)
        return {request.session for request in requests if request.session is not None and not request.is_done}

    def _run_steps(self, stopping: threading.Event) -> None:
        """Run steps until there is no work; in lockstep, at most a few before the sessions are checked again."""
        try:
            with FAST_THREAD_SWITCHING:
                steps = 0
                while (steps < LOCKSTEP_BURST or not self._lockstep) and self._busy:
                    with self._between_steps(), self._core.runner.inference():
                        if stopping.is_set():
                            return
                        while self._arrived and not (self._lockstep and steps):
                            request = self._arrived.popleft()
                            # A request that was abandoned before it was scheduled would never be removed.
                            if not request.is_done:
                                self._core.scheduler.add(request)
                        if self._abandoned:
                            done = [self._abandoned.popleft() for _ in range(len(self._abandoned))]
                            self._core.scheduler.remove(done)
                        self._core.step()
                    steps += 1
        except StopIteration as error:
            raise RuntimeError("the model raised StopIteration") from error  # a future cannot carry it

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Hold exclusive access to the core; a waiting thread gets it before the stepping thread's next step."""
        with self._turn:
            self._stepping.acquire()
        try:
            yield
        finally:
            self._stepping.release()

    def _fail(self, error: BaseException) -> None:
        with self._between_steps():
            requests = [*self._core.scheduler.requests]
            idle = all(request.is_done for request in (*self._arrived, *requests))
            if isinstance(error, asyncio.CancelledError) and idle:
                # If the loop ends right after its last completion, no request is affected: keep the cache.
                self._core.scheduler.remove(requests)
                # Wait for steps in flight: without the engine, the memory they write may be reused.
                self._core.receive()
            else:
                self._reset(error)

    def _reset(self, error: BaseException) -> None:
        reason = describe_out_of_memory(error) or f"{type(error).__name__}: {error}"
        if isinstance(error, EngineFailure):
            reason = str(error)
        elif isinstance(error, asyncio.CancelledError):
            reason = "the engine was closed, or the event loop ended"
        failure = EngineFailure(f"generation failed: {reason}")
        failure.__cause__ = error
        requests = [*self._arrived, *self._core.scheduler.requests]
        self._arrived.clear()
        # Notify callers first: if the device itself failed, resetting it fails too.
        for request in requests:
            _call_soon(request.future.get_loop(), request.fail, failure)
        self._core.reset()


def _notify_callers(requests: Sequence[Request]) -> None:
    """Stream tokens and deliver completions in the event loops of the callers."""

    def deliver(requests: Sequence[Request]) -> None:
        for request in requests:
            request.deliver()

    for loop in {request.future.get_loop() for request in requests}:
        _call_soon(loop, deliver, [request for request in requests if request.future.get_loop() is loop])


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    if not loop.is_closed():  # otherwise no caller is waiting
        loop.call_soon_threadsafe(call, *arguments)
