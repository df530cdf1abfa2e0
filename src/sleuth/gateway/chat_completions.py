"""OpenAI's /v1/chat/completions: requests, whole responses, and chunks that add up to them."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from sleuth.gateway.api import (
    MAX_CHOICES,
    Api,
    ApiError,
    ApiRequest,
    Decode,
    ParsedRequest,
    Part,
    Positive,
    Strict,
    error_body,
    event,
    parse_request,
    role_of,
    stop_strings,
    text_of,
)
from sleuth.gateway.calls import Call, Choice, FunctionCall, Message, Reply
from sleuth.gateway.functions import check_tool_choice, declare_functions
from sleuth.http.responses import HttpProblem

DONE = b"data: [DONE]\n\n"
INSTRUCTION_ROLES = ("system", "developer")
ROLES = (*INSTRUCTION_ROLES, "user", "assistant", "tool")

# Fields that never change a reply.
IGNORED = {
    "metadata",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Fields of vLLM and OpenAI that would change a reply: their neutral values, and why any other value is refused.
AS_IN_TRAINING = "tokens are sampled as in training"
UNSUPPORTED_SAMPLING: Mapping[str, tuple[Sequence[object], str]] = {
    "allowed_token_ids": (([],), AS_IN_TRAINING),
    "bad_words": (([],), AS_IN_TRAINING),
    "echo": ((False,), "the prompt is not repeated"),
    "frequency_penalty": ((0,), AS_IN_TRAINING),
    "ignore_eos": ((False,), AS_IN_TRAINING),
    "length_penalty": ((1,), AS_IN_TRAINING),
    "logit_bias": (({},), AS_IN_TRAINING),
    "min_tokens": ((0,), AS_IN_TRAINING),
    "presence_penalty": ((0,), AS_IN_TRAINING),
    "prompt_logprobs": ((), "logprobs of the prompt are not computed"),
    "repetition_penalty": ((1,), AS_IN_TRAINING),
    "response_format": (({"type": "text"},), "the model writes free text"),
    "skip_special_tokens": ((True,), "special tokens are not text"),
    "spaces_between_special_tokens": ((True,), "special tokens are not text"),
    "stop_token_ids": (([],), "stop strings are"),
    "use_beam_search": ((False,), AS_IN_TRAINING),
}


class FunctionBody(Strict):
    """A function call in a message of the assistant."""

    name: str
    arguments: str = ""


class ToolCallBody(Strict):
    """A call in a message of the assistant."""

    id: str
    function: FunctionBody
    type: Literal["function"] = "function"


class ChatMessage(Strict):
    """A message; refusals, annotations and other fields are ignored."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


class FunctionDeclaration(Strict):
    """A function; `strict` has no effect."""

    name: str
    description: str | None = None
    parameters: Any = None


class Tool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDeclaration


class FunctionName(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The function that the model has to call."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(Strict):
    """Options of a stream; OpenAI's other options have no effect."""

    include_usage: bool = False


class OpenAIRequest(ApiRequest):
    """What requests for chat and text completions share; None means the default of the server."""

    stream_options: StreamOptions | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    max_tokens: Positive | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None

    @field_validator("stream_options")
    @classmethod
    def _check_stream(cls, options: StreamOptions | None, request: ValidationInfo) -> StreamOptions | None:
        if options is not None and not request.data.get("stream"):
            raise ValueError("needs stream = true; set it, or remove the options")
        return options

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """The fields of a call other than its prompt and functions."""
        return {
            "role": role_of(self.model),
            "stops": stop_strings(self.stop),
            "include_stop": bool(self.include_stop_str_in_output),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "n": self.n or 1,
        }


def _only_sampled(count: int) -> int:
    if count != 0:
        raise ValueError("only the logprobs of sampled tokens are returned; expected 0")
    return count


class ChatRequest(OpenAIRequest):
    """A request for a chat completion."""

    ignored = IGNORED
    unsupported: ClassVar[Mapping[str, tuple[Sequence[object], str]]] = {
        **UNSUPPORTED_SAMPLING,
        "add_generation_prompt": ((True,), "the prompt ends with the assistant's turn"),
        "add_special_tokens": ((False,), "the chat template adds special tokens"),
        "audio": ((), "replies are text"),
        "chat_template": ((), "the model's own chat template is used"),
        "chat_template_kwargs": (({},), "the chat template is filled as in training"),
        "continue_final_message": ((False,), "the prompt ends with the assistant's turn"),
        "function_call": (("none", "auto"), "send tools and tool_choice instead"),
        "functions": (([],), "send tools instead"),
        "modalities": ((["text"],), "replies are text"),
        "reasoning_effort": (("none",), AS_IN_TRAINING),
        "verbosity": (("medium",), AS_IN_TRAINING),
    }
    example = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, AfterValidator(_only_sampled)] | None = None

    @property
    def token_limit(self) -> int | None:
        """The maximum number of sampled tokens; the newer name of the field takes precedence."""
        return self.max_completion_tokens or self.max_tokens


def parse(body: bytes) -> ParsedRequest[ChatRequest]:
    request = parse_request(body, ChatRequest)
    declared = [tool.function for tool in request.tools or ()]
    functions = declare_functions([(each.name, each.description, each.parameters) for each in declared])
    choice = request.tool_choice or "auto"
    call = Call(
        prompt=tuple(_message(place, message) for place, message in enumerate(request.messages)),
        functions=functions,
        tool_choice=check_tool_choice(choice if isinstance(choice, str) else choice.function.name, functions),
        parallel_calls=request.parallel_tool_calls is not False,
        **{**request.sampling(), "max_tokens": request.token_limit},
    )
    return ParsedRequest(call, request)


def _message(place: int, message: ChatMessage) -> Message:
    where = f"messages.{place}"
    if message.role not in ROLES:
        error = f"{where} has the role {message.role!r}; expected one of {', '.join(ROLES)}"
        raise ApiError(400, error, param="messages")
    calls = tuple(
        FunctionCall(each.id, each.function.name, each.function.arguments) for each in message.tool_calls or ()
    )
    role = "system" if message.role in INSTRUCTION_ROLES else message.role
    return Message(role, text_of(message.content, where), calls, message.tool_call_id)


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The id, time and model of a response, for a whole response or for its chunks."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, int], **more: Any) -> dict[str, Any]:
        return {**self._head("chat.completion"), "choices": choices, "usage": usage, **more}

    def chunk(self, *choices: Mapping[str, Any], **more: Any) -> bytes:
        return event({**self._head("chat.completion.chunk"), "choices": choices, **more})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def message_choice(
    message: Mapping[str, Any], finish: str, index: int = 0, logprobs: Any = None, **more: Any
) -> dict[str, Any]:
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish, **more}


def delta_choice(
    delta: Mapping[str, Any], finish: str | None = None, index: int = 0, logprobs: Any = None, **more: Any
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **more}


def respond(request: ParsedRequest[ChatRequest], reply: Reply, decode: Decode) -> dict[str, Any]:
    choices = []
    for index, choice in enumerate(reply.choices):
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.tool_calls:
            message |= {"content": choice.content or None, "tool_calls": _tool_calls(choice)}
        choices.append(message_choice(message, choice.finish, index, **_details(request.body, choice, decode)))
    return ChatCompletion(request.model).whole(choices, usage_of(reply), **prompt_details(request.body, reply))


def _details(request: ChatRequest, choice: Choice, decode: Decode) -> dict[str, Any]:
    """What a request may ask for about the tokens of a choice."""
    logprobs = {"logprobs": chat_logprobs(choice.ids, choice.logprobs, decode)} if request.logprobs else {}
    return {**logprobs, "token_ids": choice.ids} if request.return_token_ids else logprobs


def prompt_details(request: OpenAIRequest, reply: Reply) -> dict[str, Any]:
    return {"prompt_token_ids": reply.prompt_ids} if request.return_token_ids else {}


def usage_of(reply: Reply) -> dict[str, int]:
    prompt, sampled = len(reply.prompt_ids), sum(len(choice.ids) for choice in reply.choices)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def chat_logprobs(ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> dict[str, Any]:
    """Return the logprobs of tokens; the bytes of a part of a character are unknown."""
    content = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        text = decode([token_id])
        data = None if "\ufffd" in text else list(text.encode())
        content.append({"token": text, "logprob": logprob, "bytes": data, "top_logprobs": []})
    return {"content": content, "refusal": None}


def _tool_calls(choice: Choice) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]


class ChatWriter:
    """Writes a reply as chunks; logprobs and token ids are in the last chunk of each choice."""

    def __init__(self, request: ParsedRequest[ChatRequest], decode: Decode) -> None:
        self._request, self._decode = request, decode
        self._completion = ChatCompletion(request.model)
        self._sent = [0] * request.call.n  # characters of each content

    def start(self) -> bytes:
        first = {"role": "assistant", "content": ""}
        return b"".join(self._completion.chunk(delta_choice(first, index=index)) for index in range(len(self._sent)))

    def content(self, index: int, text: str) -> bytes:
        self._sent[index] += len(text)
        return self._completion.chunk(delta_choice({"content": text}, index=index)) if text else b""

    def end(self, reply: Reply) -> bytes:
        body, chunks = self._request.body, []
        for index, choice in enumerate(reply.choices):
            chunks.append(self.content(index, choice.content[self._sent[index] :]))
            if choice.tool_calls:
                calls = [{"index": place, **call} for place, call in enumerate(_tool_calls(choice))]
                chunks.append(self._completion.chunk(delta_choice({"tool_calls": calls}, index=index)))
            last = delta_choice({}, choice.finish, index, **_details(body, choice, self._decode))
            chunks.append(self._completion.chunk(last, **prompt_details(body, reply)))
        if body.include_usage:
            chunks.append(self._completion.chunk(usage=usage_of(reply)))
        return b"".join([*chunks, DONE])

    def error(self, problem: HttpProblem) -> bytes:
        return event(error_body(problem))


API = Api(parse, respond, ChatWriter)
