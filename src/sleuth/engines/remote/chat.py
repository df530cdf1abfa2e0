"""A turn of a conversation over /chat/completions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sleuth.engines.base import Sampling
from sleuth.engines.remote.endpoint import Endpoint
from sleuth.engines.remote.exchange import asked
from sleuth.errors import EngineFailure

Message = Mapping[str, Any]
LARGEST_SEED = 2**31  # what every server can hold
UNTOLD = object()


@dataclass(frozen=True, slots=True)
class Call:
    """A function that the model calls; `arguments` is JSON, as far as the model wrote any."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said: words, thoughts that the server keeps apart, and the first function it calls.

    `ended` where it was not cut off. `stop` is the stop string that ended it, as servers leave it out of the words:
    known from a few, None where one says that there was none, and empty where it says nothing. `tokens` were sampled
    after `given` of the conversation; both are 0 where a server does not count them.
    """

    words: str
    thoughts: str
    call: Call | None
    calls: int
    ended: bool
    stop: str | None
    tokens: int
    given: int


async def said(
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    messages: Sequence[Message],
    sampling: Sampling,
    functions: Sequence[Mapping[str, Any]] = (),
) -> Reply:
    """The model's next turn; an EngineFailure says why there is none."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": list(messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    # What is not needed is left out, for some servers refuse words that they do not know.
    if sampling.temperature:
        body["seed"] = sampling.seed % LARGEST_SEED
    if sampling.stops:
        body["stop"] = list(sampling.stops)
    if functions:
        body["tools"] = [dict(function) for function in functions]
    return _reply(await asked(http, endpoint, "/chat/completions", body), endpoint)


def _reply(answer: Any, endpoint: Endpoint) -> Reply:
    match answer:
        case {"choices": [{"message": dict(message), **choice}, *_]}:
            usage = answer.get("usage")
        case _:
            raise EngineFailure(
                f"{endpoint.base}/chat/completions answered without a message of the model "
                f"({endpoint.hidden(json.dumps(answer))[:120]}); expected an OpenAI-compatible server"
            )
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    stop = choice.get("stop_reason", choice.get("matched_stop", UNTOLD))
    return Reply(
        words=_text(message.get("content")),
        thoughts=_text(message.get("reasoning_content") or message.get("reasoning")),
        call=_call(calls[0]) if calls else None,
        calls=len(calls),
        ended=choice.get("finish_reason") != "length",
        stop="" if stop is UNTOLD else stop if isinstance(stop, str) else None,
        tokens=_count(usage, "completion_tokens"),
        given=_count(usage, "prompt_tokens"),
    )


def _text(content: object) -> str:
    """The words of a content, which some servers give in pieces."""
    if isinstance(content, list):
        return "".join(_text(piece.get("text")) for piece in content if isinstance(piece, dict))
    return content if isinstance(content, str) else ""


def _call(call: object) -> Call:
    match call:
        case {"function": {"name": str(name), **function}, **rest}:
            given, known = function.get("arguments"), rest.get("id")
            arguments = given if isinstance(given, str) else json.dumps(given)
            return Call(known if isinstance(known, str) and known else "call", name, arguments)
    return Call("call", "", "")


def _count(usage: object, name: str) -> int:
    counted = usage.get(name) if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) and counted > 0 else 0
