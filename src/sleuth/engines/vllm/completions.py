"""The /v1/completions protocol: request bodies, streamed chunks, and a completion assembled from several requests."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.errors import EngineFailure
from sleuth.model.tokens import StopStrings

PATH = "/v1/completions"
SEEDS = 2**63  # vLLM takes 63-bit seeds; larger ones would become negative, and -1 means unseeded
MIN_LOGPROB = -9999.0  # what vLLM writes for a token of negligible probability


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one streamed message; `finish` is the server's finish_reason."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None = None
    stop: str | None = None


def is_truncated(sampling: Sampling) -> bool:
    """Whether top_k, top_p or min_p excludes tokens; greedy sampling is unaffected by them."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def _body(model: str, ids: Sequence[int], temperature: float) -> dict[str, Any]:
    """Build a request that sets every sampling parameter, so that the model's generation config has no effect."""
    return {
        "model": model,
        "prompt": list(ids),
        "temperature": float(temperature),
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def probe_body(model: str, ids: Sequence[int], temperature: float, count: int, **more: Any) -> dict[str, Any]:
    """Build a request for the logprobs of the `count` likeliest tokens after `ids`, in the untruncated distribution."""
    return {**_body(model, ids, temperature), "max_tokens": 1, "seed": 0, "logprobs": count, **more}


def parse_chunk(message: str) -> Chunk:
    try:
        choice = json.loads(message)["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"] or ())
        logprobs = tuple(float(logprob) for logprob in (choice["logprobs"] or {}).get("token_logprobs", ()))
        finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EngineFailure(
            f"the server returned {message[:120]!r}, expected a completion chunk with token ids and logprobs"
        ) from error
    if len(ids) != len(logprobs):
        raise EngineFailure(f"the server returned {len(ids)} tokens with {len(logprobs)} logprobs, expected one each")
    if any(logprob != logprob or logprob <= MIN_LOGPROB for logprob in logprobs):
        raise EngineFailure(f"the server returned the logprobs {logprobs}, expected numbers above {MIN_LOGPROB}")
    return Chunk(ids, logprobs, finish, stop if isinstance(stop, str) else None)


def parse_top_logprobs(answer: object) -> dict[int, float]:
    """Parse the response to a `probe_body` request into logprobs by token."""
    try:
        (found,) = answer["choices"][0]["logprobs"]["top_logprobs"]  # type: ignore[index]
        return {int(name.removeprefix("token_id:")): float(logprob) for name, logprob in found.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EngineFailure(f"the server returned {str(answer)[:120]!r}, expected top_logprobs") from error


class PartialCompletion:
    """A completion in progress, which may continue on another server or with newer weights."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, *, context: int, stops: StopStrings) -> None:
        if not 0 < len(prompt) < context:
            raise EngineFailure(f"the prompt has {len(prompt)} tokens, expected 1 to {context - 1}")
        self.prompt, self.sampling = tuple(index(token) for token in prompt), sampling
        self._stops = stops
        self._max_tokens = min(index(sampling.max_tokens), context - len(prompt))
        self._resumed = False
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish: Finish | None = None
        self.stop: str | None = None

    def request_body(self, model: str, eos_ids: Sequence[int]) -> dict[str, Any]:
        sampling, sampled = self.sampling, len(self.ids)
        self._resumed = bool(self.ids)
        truncation = {"top_k": index(sampling.top_k), "top_p": sampling.top_p, "min_p": sampling.min_p}
        return {
            **_body(model, [*self.prompt, *self.ids], sampling.temperature),
            **(truncation if is_truncated(sampling) else {}),
            "max_tokens": self._max_tokens - sampled,
            "seed": (index(sampling.seed) + sampled) % SEEDS,
            "stop": list(sampling.stops),
            "stop_token_ids": list(eos_ids),
            "include_stop_str_in_output": True,
            "stream": True,
            "logprobs": 0,
        }

    def add(self, chunk: Chunk, version: int) -> list[int]:
        """Append a chunk and return its tokens up to the end of the completion."""
        before = len(self.ids)
        for token, logprob in zip(chunk.ids, chunk.logprobs, strict=True):
            self.ids.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            if self._resumed and self._ends_with_stop():
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
        # A server misses a stop string that began in an earlier request; older servers misreport which one came first.
        self.stop = self._stops.match([*self.prompt, *self.ids], len(self.prompt), self.sampling.stops)
        if self.stop is not None:
            self.finish = Finish.STOP
        return self.stop is not None

    def _apply_finish(self, chunk: Chunk) -> None:
        if chunk.finish in ("stop", "length") and not self.ids:
            raise EngineFailure(f"the server finished ({chunk.finish}) without a token, expected at least one")
        match chunk.finish:
            case None if len(self.ids) < self._max_tokens:
                return
            case "stop":
                if chunk.stop is None:
                    self.finish = Finish.END
                elif not self._ends_with_stop():
                    self.finish, self.stop = Finish.STOP, chunk.stop
            case "length" | None:
                self.finish = Finish.LENGTH if self._max_tokens == self.sampling.max_tokens else Finish.CONTEXT
            case "abort":
                return  # the engine requests the rest again
            case other:
                raise EngineFailure(f"the server's finish_reason is {other!r}, expected stop, length or abort")
