"""An engine that replays given token sequences, for tests and demonstrations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sleuth.engines.base import Completion, Finish, OnTokens, Sampling, Session
from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

Script = Callable[[Sequence[int]], Sequence[int] | Completion]


class ScriptedEngine:
    """Answers each prompt with the output of a script function; every logprob is 0."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._version = 0

    @classmethod
    def playing(cls, *lines: Sequence[int]) -> "ScriptedEngine":
        """Replay the lines in order, ignoring the prompt; raises EngineFailure after the last one."""
        remaining = iter(lines)

        def script(_ids: Sequence[int]) -> Sequence[int]:
            if (line := next(remaining, None)) is None:
                raise EngineFailure(f"the script has only {len(lines)} lines; add one for this call")
            return line

        return cls(script)

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        yield Session(priority)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,  # noqa: ARG002  a script has no cache
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        if not ids:
            raise EngineFailure("the prompt has 0 tokens, expected 1 or more")
        completion = self._script(ids)
        if not isinstance(completion, Completion):
            line = tuple(completion)[: sampling.max_tokens]
            finish = Finish.STOP if len(completion) <= sampling.max_tokens else Finish.LENGTH
            completion = Completion(line, (0.0,) * len(line), (self._version,) * len(line), finish)
        if on_tokens is not None:
            on_tokens(completion.ids)
        return completion

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:  # noqa: ARG002
        self._version = version

    async def close(self) -> None:
        """No-op: nothing to free."""
