"""Calls of the teacher: cached, bounded in number, counted by stage; a failure is a value."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter

from sleuth.engines.base import Sampling
from sleuth.engines.remote import ContextFull, EndpointRefused
from sleuth.errors import EngineFailure
from sleuth.http.client import RETRYABLE_STATUSES
from sleuth.synthesis.teacher.reply_cache import ReplyCache, reply_key
from sleuth.synthesis.teacher.teacher import Teacher

MAX_FAILURES = 20  # consecutive failures after which the teacher is not called again


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call without a reply; a final one will fail again, another is left for the next start."""

    reason: str
    final: bool


@dataclass(slots=True)
class CallCosts:
    """Costs of one stage; `seconds` is the time during which at least one of its calls was in flight."""

    calls: int = 0
    cached: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Clock:
    """Time during which something runs."""

    running: int = 0
    since: float = 0.0


@dataclass(slots=True)
class TeacherCalls:
    """Sends requests to the teacher, at most its `concurrency` at a time; `costs` are by stage."""

    teacher: Teacher
    cache: ReplyCache
    costs: dict[str, CallCosts] = field(default_factory=dict)
    last_failure: str = ""
    _consecutive: int = 0
    _slots: asyncio.Semaphore = field(init=False)
    _clocks: dict[str, _Clock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.teacher.concurrency)

    @property
    def pending(self) -> int:
        """Number of calls that failed and are left for the next start."""
        return sum(each.failed for each in self.costs.values())

    @property
    def unusable(self) -> bool:
        """Whether the teacher failed so often in a row that it is not called again."""
        return self._consecutive >= MAX_FAILURES

    async def ask(self, stage: str, messages: Sequence[Mapping[str, str]], sampling: Sampling) -> str | CallFailed:
        """Return the text of a reply, from the cache if it is there."""
        costs = self.costs.setdefault(stage, CallCosts())
        key = reply_key(self.teacher.identity, messages, sampling)
        if (known := self.cache.get(key)) is not None:
            costs.cached += 1
            return known.text
        async with self._slots:
            if self.unusable:
                costs.failed += 1
                return CallFailed(self.last_failure, final=False)
            return await self._call(stage, costs, key, messages, sampling)

    async def _call(
        self, stage: str, costs: CallCosts, key: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> str | CallFailed:
        self._start(stage)
        try:
            reply = await self.teacher.complete(messages, sampling)
        except EngineFailure as failure:
            return self._fail(costs, failure)
        finally:
            costs.seconds += self._stop(stage)
        self._consecutive = 0
        self.cache.add(key, reply)
        costs.calls += 1
        costs.prompt_tokens += reply.prompt_tokens
        costs.completion_tokens += reply.completion_tokens
        return reply.text

    def _fail(self, costs: CallCosts, failure: EngineFailure) -> CallFailed:
        """Count a failure; a server that rejects one request, such as one that is too long, would reject it again."""
        final = isinstance(failure, ContextFull)
        if isinstance(failure, EndpointRefused):
            final = failure.status in (400, 413, 422) and failure.status not in RETRYABLE_STATUSES
        self.last_failure = str(failure)
        if final:
            costs.refused += 1
        else:
            costs.failed += 1
            self._consecutive += 1
        return CallFailed(self.last_failure, final)

    def _start(self, stage: str) -> None:
        clock = self._clocks.setdefault(stage, _Clock())
        if not clock.running:
            clock.since = perf_counter()
        clock.running += 1

    def _stop(self, stage: str) -> float:
        """Return the seconds since the last time that nothing of the stage was running, if nothing is now."""
        clock = self._clocks[stage]
        clock.running -= 1
        return 0.0 if clock.running else perf_counter() - clock.since

    def report(self) -> dict[str, dict[str, float]]:
        """Return the costs of each stage."""
        return {stage: {**asdict(each), "seconds": round(each.seconds, 3)} for stage, each in self.costs.items()}
