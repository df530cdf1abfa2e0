"""What a client asks for: the fields of /v1/chat/completions that mean something here, and why others are refused."""

from collections.abc import Mapping, Sequence
from reprlib import repr as shortened
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sleuth.serve.agent.problems import Denied

EXPECTED = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

# Fields that change no answer, wherever they are understood.
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields that would change an answer, with the values at which they do not, and why nothing else is taken.
UNSUPPORTED: Mapping[str, tuple[Sequence[object], str]] = {
    "audio": ((), "answers are text"),
    "frequency_penalty": ((0,), "tokens are drawn as the model was trained"),
    "function_call": (("none", "auto"), "the agent calls its own search, and no functions of others"),
    "functions": (([],), "the agent calls its own search, and no functions of others"),
    "logit_bias": (({},), "tokens are drawn as the model was trained"),
    "logprobs": ((False,), "an answer has no logprobs here"),
    "modalities": ((["text"],), "answers are text"),
    "n": ((1,), "a request has one answer; send several for several"),
    "presence_penalty": ((0,), "tokens are drawn as the model was trained"),
    "repetition_penalty": ((1,), "tokens are drawn as the model was trained"),
    "response_format": (({"type": "text"},), "answers are short text"),
    "stop": (([], ""), "the agent stops where its own grammar says"),
    "tool_choice": (("none", "auto"), "the agent calls its own search, and no tools of others"),
    "tools": (([],), "the agent calls its own search, and no tools of others"),
    "top_logprobs": ((0,), "an answer has no logprobs here"),
}


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Part(_Read):
    """A piece of a message."""

    type: str
    text: str | None = None


class Message(_Read):
    """A turn of the chat; what clients keep beside role and content is not read."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(_Read):
    include_usage: bool = False


class ChatRequest(_Read):
    """A question with how it is to be answered; None where the server's own default holds."""

    model_config = ConfigDict(extra="allow")

    messages: Annotated[list[Message], Field(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def most(self) -> int | None:
        """How many tokens may be sampled for it; the newer name of the field is heard first."""
        return self.max_completion_tokens or self.max_tokens


def read(body: bytes) -> ChatRequest:
    """The request in a body; one that asks for what is not done here is refused in a sentence."""
    try:
        wanted = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _faulty(error) from None
    for name, value in (wanted.model_extra or {}).items():
        _check(name, value)
    if wanted.stream_options is not None and not wanted.stream:
        raise Denied(400, "stream_options is for streams; set stream to true, or leave it out", param="stream_options")
    return wanted


def _check(name: str, value: object) -> None:
    """Refuses a field that would have no effect."""
    if value is None or name in WITHOUT_EFFECT:
        return
    if name not in UNSUPPORTED:
        raise Denied(400, f"the field {name!r} is not known here; leave it out", param=name, code="unknown_parameter")
    neutral, reason = UNSUPPORTED[name]
    if value not in neutral:
        sentence = f"{name} is {shortened(value)}, which is not supported: {reason}; leave it out"
        raise Denied(400, sentence, param=name, code="unsupported_parameter")


def _faulty(error: ValidationError) -> Denied:
    first: Any = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        why = first["msg"].removeprefix("Invalid JSON: ")
        return Denied(400, f"the body is no JSON ({why}); expected {EXPECTED}", code="invalid_json")
    place = ".".join(map(str, first["loc"]))
    param = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return Denied(400, f"{place} is missing; expected {EXPECTED}", param=param)
    said = first["msg"][0].lower() + first["msg"][1:]
    return Denied(400, f"{place or 'the body'}: {said}, and it is {shortened(first['input'])}", param=param)
