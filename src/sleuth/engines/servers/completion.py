"""A completion assembled from the streamed chunks of one or more requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.errors import EngineFailure
from sleuth.model.tokens import StopStrings

MIN_LOGPROB = -9999.0  # what vLLM writes for a token of negligible probability


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one streamed message; `finish` is the server's finish reason.

    `weights` is the server's name for the weights that it samples with, if it reports one.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None = None
    stop: str | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise EngineFailure(
                f"the server returned {len(self.ids)} tokens with {len(self.logprobs)} logprobs, expected one each"
            )
        if any(logprob != logprob or logprob <= MIN_LOGPROB for logprob in self.logprobs):
            raise EngineFailure(
                f"the server returned the logprobs {self.logprobs}, expected numbers above {MIN_LOGPROB}"
            )


def is_truncated(sampling: Sampling) -> bool:
    """Whether top_k, top_p or min_p excludes tokens; greedy sampling is unaffected by them."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


class PartialCompletion:
    """A completion in progress, which may continue on another server or with newer weights.

    `finds_stops` is whether the servers find every stop string that begins and ends in one request. Prompts are limited
    to token ids below `vocabulary`, if the servers do not check them.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        context: int,
        stops: StopStrings,
        eos_ids: Sequence[int] = (),
        finds_stops: bool = True,
        vocabulary: int | None = None,
    ) -> None:
        if not 0 < len(prompt) < context:
            raise EngineFailure(f"the prompt has {len(prompt)} tokens, expected 1 to {context - 1}")
        self.prompt, self.sampling = tuple(index(token) for token in prompt), sampling
        if vocabulary is not None and (unknown := [token for token in self.prompt if not 0 <= token < vocabulary]):
            raise EngineFailure(f"the prompt has the token {unknown[0]}, expected 0 to {vocabulary - 1}")
        self.eos_ids = tuple(eos_ids)
        self._stops, self._finds_stops = stops, finds_stops
        self._max_tokens = min(index(sampling.max_tokens), context - len(prompt))
        self._requested_at = 0
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: Finish | None = None
        self.stop: str | None = None

    @property
    def tokens_left(self) -> int:
        return self._max_tokens - len(self.ids)

    def begin_request(self) -> list[int]:
        """Return the prompt of a request for the rest."""
        self._requested_at = len(self.ids)
        return [*self.prompt, *self.ids]

    def add(self, chunk: Chunk, version: int) -> list[int]:
        """Append a chunk and return its tokens up to the end of the completion."""
        before = len(self.ids)
        for token, logprob in zip(chunk.ids, chunk.logprobs, strict=True):
            self.ids.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            # A server misses a stop string that began in an earlier request.
            if (self._requested_at or not self._finds_stops) and self._ends_with_stop():
                return self.ids[before:]
        if len(self.ids) > self._max_tokens:
            raise EngineFailure(f"the server sampled {len(self.ids)} tokens, expected at most {self._max_tokens}")
        self._apply_finish(chunk)
        return self.ids[before:]

    def completion(self) -> Completion:
        if self.finish is None:
            raise EngineFailure("the completion has not finished")
        return Completion(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), self.finish, self.stop)

    def _ends_with_stop(self) -> bool:
        # Checked again even if the server found one: older servers misreport which one came first.
        self.stop = self._stops.match([*self.prompt, *self.ids], len(self.prompt), self.sampling.stops)
        if self.stop is not None:
            self.finish = Finish.STOP
        return self.stop is not None

    def _apply_finish(self, chunk: Chunk) -> None:
        if chunk.finish in ("stop", "length") and not self.ids:
            raise EngineFailure(f"the server finished ({chunk.finish}) without a token, expected at least one")
        match chunk.finish:
            case None if self.tokens_left:
                return
            case "stop":
                if chunk.stop is None:
                    self.finish = Finish.END
                elif not self._ends_with_stop():
                    self.finish, self.stop = Finish.STOP, chunk.stop
            case "length" if self.tokens_left:
                raise EngineFailure(
                    f"the server ended at its own limit after {len(self.ids)} tokens, expected {self._max_tokens}; "
                    "start it with a longer context"
                )
            case "length" | None:
                whole = self._max_tokens == self.sampling.max_tokens
                self.finish = Finish.LENGTH if whole else Finish.CONTEXT
                if self.ids[-1] in self.eos_ids:
                    self.finish = Finish.END
            case "abort":
                return  # the engine requests the rest again
            case other:
                raise EngineFailure(f"the server's finish_reason is {other!r}, expected stop, length or abort")
