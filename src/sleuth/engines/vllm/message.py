"""What is sent to a server and what comes back: bodies of /v1/completions and the pieces of its stream."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from sleuth.engines.base import Sampling
from sleuth.errors import EngineFailure

# The server takes seeds of 63 bits; more would be negative, and -1 means none.
SEEDS = 2**63
# The logprob that a server writes for what is less likely than it can say.
LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one message; `finish` is the server's word for why it was the last."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None = None
    stop: str | None = None


def is_cut(sampling: Sampling) -> bool:
    """Whether some tokens cannot be drawn; greedy sampling draws the best whatever is cut."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def request(
    model: str, ids: Sequence[int], sampling: Sampling, *, most: int, drawn: int, ends: Sequence[int]
) -> dict[str, Any]:
    """Asks for up to `most` tokens after `ids`, the last `drawn` of which were sampled for the same call before."""
    cuts = (
        {"top_k": index(sampling.top_k), "top_p": sampling.top_p, "min_p": sampling.min_p} if is_cut(sampling) else {}
    )
    return {
        **_whole(model, ids, sampling.temperature),
        **cuts,
        "max_tokens": most,
        "seed": (index(sampling.seed) + drawn) % SEEDS,
        "stop": list(sampling.stops),
        "stop_token_ids": list(ends),
        "include_stop_str_in_output": True,
        "stream": True,
        "logprobs": 0,
    }


def scoring(model: str, ids: Sequence[int], temperature: float, token: int) -> dict[str, Any]:
    """Asks how likely `token` is after `ids`, in the whole distribution at that temperature."""
    return {
        **_whole(model, ids, temperature),
        "max_tokens": 1,
        "seed": 0,
        "logprobs": 1,
        "logprob_token_ids": [token],
    }


def best(model: str, ids: Sequence[int], temperature: float, count: int) -> dict[str, Any]:
    """Asks for the logprobs of the likeliest tokens after `ids`."""
    return {**_whole(model, ids, temperature), "max_tokens": 1, "seed": 0, "logprobs": count}


def _whole(model: str, ids: Sequence[int], temperature: float) -> dict[str, Any]:
    """Everything named, so that no default of the model's own generation settings holds."""
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


def piece(message: str) -> Piece:
    """Reads one message of a stream."""
    try:
        choice = json.loads(message)["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"] or ())
        logprobs = tuple(float(logprob) for logprob in (choice["logprobs"] or {}).get("token_logprobs", ()))
        finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EngineFailure(
            f"the server answered {message[:120]!r}, expected a piece of a completion with its token ids and logprobs"
        ) from error
    if len(ids) != len(logprobs):
        raise EngineFailure(f"the server answered {len(ids)} tokens with {len(logprobs)} logprobs, expected one each")
    if any(logprob != logprob or logprob <= LEAST for logprob in logprobs):
        raise EngineFailure(f"the server answered the logprobs {logprobs}, expected numbers above {LEAST}")
    return Piece(ids, logprobs, finish, stop if isinstance(stop, str) else None)


def likeliest(answer: object) -> dict[int, float]:
    """The logprobs of an answer to `scoring` or `best`, by token."""
    try:
        (found,) = answer["choices"][0]["logprobs"]["top_logprobs"]  # type: ignore[index]
        return {int(name.removeprefix("token_id:")): float(logprob) for name, logprob in found.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EngineFailure(
            f"the server answered {str(answer)[:120]!r}, expected the logprobs of the likeliest tokens"
        ) from error
