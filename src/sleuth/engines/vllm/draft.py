"""A completion on its way: it may be begun at one server, or by older weights, and continued elsewhere."""

from collections.abc import Sequence
from operator import index
from typing import Any

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.stops import Stops
from sleuth.engines.vllm.message import Piece, request
from sleuth.errors import EngineFailure


class Draft:
    """Tokens so far, with their logprobs and versions, and how to ask for the rest."""

    def __init__(self, given: Sequence[int], sampling: Sampling, *, context: int, stops: Stops) -> None:
        if not 0 < len(given) < context:
            raise EngineFailure(f"a prompt of {len(given)} tokens; expected 1 to {context - 1}, for room after it")
        self.given, self.sampling = tuple(index(token) for token in given), sampling
        self._stops = stops
        self._room = min(index(sampling.max_tokens), context - len(given))
        self._continued = False
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: Finish | None = None
        self.stop: str | None = None

    def request(self, model: str, ends: Sequence[int]) -> dict[str, Any]:
        """What to ask a server for."""
        self._continued = bool(self.ids)
        most, drawn = self._room - len(self.ids), len(self.ids)
        return request(model, [*self.given, *self.ids], self.sampling, most=most, drawn=drawn, ends=ends)

    def add(self, piece: Piece, version: int) -> list[int]:
        """Takes in what a server sent; the tokens that are new."""
        before = len(self.ids)
        for token, logprob in zip(piece.ids, piece.logprobs, strict=True):
            self.ids.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            if self._continued and self._ends_with_a_stop():
                return self.ids[before:]
        if len(self.ids) > self._room:
            raise EngineFailure(f"the server sampled {len(self.ids)} tokens, expected {self._room} at most")
        self._end(piece)
        return self.ids[before:]

    def completion(self) -> Completion:
        """What was sampled, when it has ended."""
        if self.finish is None:
            raise EngineFailure("a completion that has not ended")
        return Completion(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), self.finish, self.stop)

    def _ends_with_a_stop(self) -> bool:
        """A server knows neither a stop begun before it continued, nor, in old versions, which of two came first."""
        self.stop = self._stops.matched([*self.given, *self.ids], len(self.given), self.sampling.stops)
        if self.stop is not None:
            self.finish = Finish.STOP
        return self.stop is not None

    def _end(self, piece: Piece) -> None:
        if piece.finish in ("stop", "length") and not self.ids:
            raise EngineFailure(f"the server ended without a token ({piece.finish}), expected one or more")
        match piece.finish:
            case None if len(self.ids) < self._room:
                return
            case "stop":
                if piece.stop is None:
                    self.finish = Finish.END
                elif not self._ends_with_a_stop():
                    self.finish, self.stop = Finish.STOP, piece.stop
            case "length" | None:
                self.finish = Finish.LENGTH if self._room == self.sampling.max_tokens else Finish.CONTEXT
            case "abort":
                return  # the rest is asked for anew
            case other:
                raise EngineFailure(f"the server ended with {other!r}, expected stop, length or abort")
