"""OpenAI's /v1/completions: text or token ids in, text out."""

import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from sleuth.gateway.api import Api, Decode, ParsedRequest, error_body, event, parse_request
from sleuth.gateway.calls import Call, Choice, Reply
from sleuth.gateway.chat_completions import (
    DONE,
    IGNORED,
    UNSUPPORTED_SAMPLING,
    OpenAIRequest,
    prompt_details,
    usage_of,
)
from sleuth.http.responses import HttpProblem


class TextRequest(OpenAIRequest):
    """A request for a text completion; `logprobs` asks for those of the sampled tokens, whether it is 0 or 1."""

    ignored = IGNORED
    unsupported: ClassVar[Mapping[str, tuple[Sequence[object], str]]] = {
        **UNSUPPORTED_SAMPLING,
        "add_special_tokens": ((True,), "a text begins as in training; send token ids"),
        "best_of": ((1,), "send n"),
        "suffix": (("",), "the model continues its prompt"),
    }
    example = '{"model": "...", "prompt": "..."}'

    prompt: str | list[Annotated[int, Field(ge=0)]]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_single(cls, prompt: object) -> object:
        if isinstance(prompt, list) and not all(isinstance(token_id, int) for token_id in prompt):
            raise ValueError("expected one text or one list of token ids; send a request for each prompt")
        return prompt


def parse(body: bytes) -> ParsedRequest[TextRequest]:
    request = parse_request(body, TextRequest)
    prompt = request.prompt if isinstance(request.prompt, str) else tuple(request.prompt)
    return ParsedRequest(Call(prompt, **request.sampling()), request)


def _head(model: str) -> dict[str, Any]:
    name = f"cmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model}


def respond(request: ParsedRequest[TextRequest], reply: Reply, decode: Decode) -> dict[str, Any]:
    choices = [
        {"index": index, "text": choice.content, **_details(request.body, reply, choice, decode)}
        for index, choice in enumerate(reply.choices)
    ]
    prompt = prompt_details(request.body, reply)
    return {**_head(request.model), "choices": choices, "usage": usage_of(reply), **prompt}


def _details(request: TextRequest, reply: Reply, choice: Choice, decode: Decode) -> dict[str, Any]:
    """The finish reason, and what a request may ask for about tokens; vLLM repeats the prompt in each choice."""
    logprobs = None if request.logprobs is None else text_logprobs(choice.ids, choice.logprobs, decode)
    ids = {"token_ids": choice.ids, **prompt_details(request, reply)} if request.return_token_ids else {}
    return {"logprobs": logprobs, "finish_reason": choice.finish, **ids}


def text_logprobs(ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> dict[str, Any]:
    texts = [decode([token_id]) for token_id in ids]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}


class TextWriter:
    """Writes a reply as chunks; logprobs and token ids are in the last chunk of each choice."""

    def __init__(self, request: ParsedRequest[TextRequest], decode: Decode) -> None:
        self._request, self._decode, self._head = request, decode, _head(request.model)
        self._sent = [0] * request.call.n  # characters of each text

    def start(self) -> bytes:
        return b""

    def content(self, index: int, text: str) -> bytes:
        self._sent[index] += len(text)
        return self._chunk({"index": index, "text": text, "logprobs": None, "finish_reason": None}) if text else b""

    def end(self, reply: Reply) -> bytes:
        body, chunks = self._request.body, []
        for index, choice in enumerate(reply.choices):
            rest = choice.content[self._sent[index] :]
            chunks.append(self._chunk({"index": index, "text": rest, **_details(body, reply, choice, self._decode)}))
        if body.include_usage:
            chunks.append(self._chunk(usage=usage_of(reply)))
        return b"".join([*chunks, DONE])

    def error(self, problem: HttpProblem) -> bytes:
        return event(error_body(problem))

    def _chunk(self, *choices: Mapping[str, Any], **more: Any) -> bytes:
        return event({**self._head, "choices": choices, **more})


API = Api(parse, respond, TextWriter)
