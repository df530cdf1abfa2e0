"""An engine that plays given token sequences, for tests and demonstrations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sleuth.engines.base import Completion, Finish, OnTokens, Sampling, Session
from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

Script = Callable[[Sequence[int]], Sequence[int] | Completion]


class ScriptedEngine:
    """Answers each call with what its script says for those ids; every logprob is 0, a certainty."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._version = 0

    @classmethod
    def playing(cls, *lines: Sequence[int]) -> "ScriptedEngine":
        """Plays the lines one after the other, whatever it is asked; a call after the last is an EngineFailure."""
        remaining = iter(lines)

        def script(_ids: Sequence[int]) -> Sequence[int]:
            line = next(remaining, None)
            if line is None:
                raise EngineFailure(f"the script of {len(lines)} lines is at its end")
            return line

        return cls(script)

    @contextmanager
    def session(self, priority: int) -> Iterator[Session]:
        yield Session(priority)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,  # noqa: ARG002  a script has no cache to keep
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        if not ids:
            raise EngineFailure("a prompt of 0 tokens; expected 1 or more")
        line = self._script(ids)
        completion = line if isinstance(line, Completion) else self._played(line, sampling.max_tokens)
        if on_tokens is not None:
            on_tokens(completion.ids)
        return completion

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:  # noqa: ARG002
        self._version = version

    def _played(self, line: Sequence[int], most: int) -> Completion:
        played = tuple(line)[:most]
        finish = Finish.STOP if len(line) <= most else Finish.LENGTH
        return Completion(played, (0.0,) * len(played), (self._version,) * len(played), finish)

    async def close(self) -> None:
        """Nothing is held."""
