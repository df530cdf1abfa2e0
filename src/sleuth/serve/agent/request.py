"""Requests to /v1/chat/completions: supported fields, refused fields, and the question they contain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from reprlib import repr as shorten
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from sleuth.agent import methods, prompts
from sleuth.agent.episode import Agent, multi_turn
from sleuth.http.responses import JSON, HttpProblem, encode_json
from sleuth.records import Question

INSTRUCTION_ROLES = ("system", "developer")
ROLES = (*INSTRUCTION_ROLES, "user", "assistant")
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ERROR_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
SINGLE_QUESTION = "send the question alone, as one message of the user"
EXPECTED = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

# Fields that never change an answer.
IGNORED = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Fields that would change an answer: their neutral values, and why any other value is refused.
UNSUPPORTED: Mapping[str, tuple[Sequence[object], str]] = {
    "audio": ((), "answers are text"),
    "frequency_penalty": ((0,), "tokens are sampled as in training"),
    "function_call": (("none", "auto"), "the agent calls only its own tools"),
    "functions": (([],), "the agent calls only its own tools"),
    "logit_bias": (({},), "tokens are sampled as in training"),
    "logprobs": ((False,), "logprobs are not returned"),
    "modalities": ((["text"],), "answers are text"),
    "n": ((1,), "each request has one answer; send several requests"),
    "presence_penalty": ((0,), "tokens are sampled as in training"),
    "repetition_penalty": ((1,), "tokens are sampled as in training"),
    "response_format": (({"type": "text"},), "answers are short text"),
    "stop": (([], ""), "the agent has its own stop strings"),
    "tool_choice": (("none", "auto"), "the agent calls only its own tools"),
    "tools": (([],), "the agent calls only its own tools"),
    "top_logprobs": ((0,), "logprobs are not returned"),
}


class ApiError(HttpProblem):
    """A refused request; `param` names the field and `code` the problem, as in OpenAI's API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


def error_body(error: HttpProblem) -> dict[str, Any]:
    param, code = (error.param, error.code) if isinstance(error, ApiError) else (None, None)
    kind = ERROR_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = code or ERROR_CODES.get(error.status)
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def error_response(error: HttpProblem) -> Response:
    return Response(encode_json(error_body(error)), error.status, error.headers, media_type=JSON)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Part(_Strict):
    type: str
    text: str | None = None


class Message(_Strict):  # other fields are ignored
    role: str
    content: str | list[Part] | None = None


class StreamOptions(_Strict):
    include_usage: bool = False


class ChatRequest(_Strict):
    """The supported fields; None means the server's default."""

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
    def token_limit(self) -> int | None:
        """The maximum number of sampled tokens; the newer name of the field takes precedence."""
        return self.max_completion_tokens or self.max_tokens


def parse_request(body: bytes) -> ChatRequest:
    """Parse a request body; raises ApiError for a field that would have no effect."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_context=False)[0]
        place, param = ".".join(map(str, first["loc"])), str(first["loc"][0]) if first["loc"] else None
        if first["type"] == "json_invalid":
            reason = first["msg"].removeprefix("Invalid JSON: ")
            message = f"the body is not JSON ({reason}); expected {EXPECTED}"
            raise ApiError(400, message, code="invalid_json") from None
        if first["type"] == "missing":
            raise ApiError(400, f"{place} is missing; expected {EXPECTED}", param=param) from None
        problem = first["msg"][0].lower() + first["msg"][1:]
        message = f"{place or 'the body'}: {problem}, but is {shorten(first['input'])}"
        raise ApiError(400, message, param=param) from None
    for name, value in (request.model_extra or {}).items():
        if value is None or name in IGNORED:
            continue
        if name not in UNSUPPORTED:
            raise ApiError(400, f"unknown field {name!r}; remove it", param=name, code="unknown_parameter")
        neutral, reason = UNSUPPORTED[name]
        if value not in neutral:
            message = f"{name} is {shorten(value)}, which is not supported: {reason}; remove it"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options needs stream = true; set it, or remove the options", param="stream_options")
    return request


def extract_question(messages: Sequence[Message], agent: Agent, max_characters: int) -> Question:
    """Return the last message as a question, with earlier messages before it in the prompt.

    Raises ApiError for earlier messages without a chat template, or with a method other than `search`.
    """
    texts = [_text(place, message) for place, message in enumerate(messages)]
    if (length := sum(map(len, texts))) > max_characters:
        message = f"the messages have {length:,} characters; the maximum is {max_characters:,}, shorten them"
        raise ApiError(400, message, param="messages", code="string_above_max_length")
    if messages[-1].role != "user":
        message = f"the last message has the role {messages[-1].role!r}; expected the question, with the role 'user'"
        raise ApiError(400, message, param="messages")
    if not texts[-1].strip():
        raise ApiError(400, "the last message is empty; write a question", param="messages")
    # The id that `sleuth ask` uses, so that the same seed samples the same tokens.
    question = Question(id="asked", question=texts[-1].strip(), golden_answers=(), data_source="asked")
    if len(messages) == 1:
        return question
    if agent.tokens.tokenizer.chat_template is None:
        raise ApiError(400, f"the model has no chat template and answers single questions only; {SINGLE_QUESTION}")
    if agent.method is not multi_turn:
        raise ApiError(400, f"the method {agent.config.method} answers single questions only; {SINGLE_QUESTION}")
    earlier = [
        {"role": "system" if message.role in INSTRUCTION_ROLES else message.role, "content": text}
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
    ]
    return replace(question, prompt=(*earlier, *prompts.fill(question, agent.config.template, agent.protocol)))


def count_prompt_tokens(question: Question, agent: Agent) -> int:
    """Like `methods.count_prompt_tokens`; raises ApiError if the chat template rejects the client's messages."""
    try:
        return methods.count_prompt_tokens(agent, question)
    except Exception as error:  # templates are third-party programs
        if question.prompt is None:
            raise
        message = f"the model's chat template rejects these messages ({error})"
        raise ApiError(400, message, param="messages") from error


def _text(place: int, message: Message) -> str:
    """Return the content of a message as text."""
    where = f"messages.{place}"
    if message.role not in ROLES:
        error = f"{where} has the role {message.role!r}; expected one of {', '.join(ROLES)}"
        raise ApiError(400, error, param="messages")
    content = message.content
    if isinstance(content, list):
        other = next((part.type for part in content if part.type != "text" or part.text is None), None)
        if other is not None:
            raise ApiError(400, f"{where} has a part of type {other!r}; only text is supported", param="messages")
        content = "".join(part.text or "" for part in content)
    return content or ""
