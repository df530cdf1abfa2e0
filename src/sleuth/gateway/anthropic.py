"""Anthropic's /v1/messages: requests, whole messages, events, and errors in its format."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from starlette.responses import Response

from sleuth.gateway.api import (
    Api,
    ApiError,
    ApiRequest,
    Decode,
    ParsedRequest,
    Part,
    Positive,
    Strict,
    event,
    parse_request,
    role_of,
    stop_strings,
    text_of,
)
from sleuth.gateway.calls import Call, Choice, FinishReason, FunctionCall, Message, Reply
from sleuth.gateway.functions import check_tool_choice, declare_functions
from sleuth.http.responses import JSON, HttpProblem, encode_json

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Block(Part):
    """A block of a message: text, a call of a tool, or its result."""

    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None


class AnthropicMessage(Strict):
    """A message of the conversation."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class AnthropicTool(Strict):
    """A tool that the model may call."""

    name: str
    input_schema: Any
    description: str | None = None
    type: Literal["custom"] | None = None


class ToolChoice(Strict):
    """Which tool the model calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessagesRequest(ApiRequest):
    """A request for a message."""

    ignored: ClassVar = {"metadata", "service_tier", "inference_geo"}
    unsupported: ClassVar[Mapping[str, tuple[Sequence[object], str]]] = {
        "container": ((), "the model has no container"),
        "context_management": ((), "the prompt is not shortened"),
        "mcp_servers": (([],), "the client calls tools"),
        "output_config": (({},), "the model writes free text"),
        "output_format": ((), "the model writes free text"),
        "thinking": (({"type": "disabled"},), "the model's reasoning is part of its text"),
    }
    example = '{"model": "...", "max_tokens": 256, "messages": [{"role": "user", "content": "..."}]}'

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    max_tokens: Positive
    system: str | list[Part] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None


def error_body(error: HttpProblem) -> dict[str, Any]:
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def error_response(error: HttpProblem) -> Response:
    return Response(encode_json(error_body(error)), error.status, error.headers, media_type=JSON)


def parse(body: bytes) -> ParsedRequest[MessagesRequest]:
    request = parse_request(body, MessagesRequest)
    functions = declare_functions([(each.name, each.description, each.input_schema) for each in request.tools or ()])
    system = text_of(request.system, "system")
    messages = [Message("system", system)] if system else []
    for place, message in enumerate(request.messages):
        messages += _messages(f"messages.{place}", message)
    choice = request.tool_choice
    wanted = "auto" if choice is None else TOOL_CHOICES.get(choice.type, choice.name or "")
    call = Call(
        prompt=tuple(messages),
        role=role_of(request.model),
        functions=functions,
        tool_choice=check_tool_choice(wanted, functions),
        parallel_calls=choice is None or not choice.disable_parallel_tool_use,
        stops=stop_strings(request.stop_sequences, "stop_sequences"),
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
    )
    return ParsedRequest(call, request)


def _messages(place: str, message: AnthropicMessage) -> list[Message]:
    """Split a message: each result of a tool is a message of its own."""
    if isinstance(message.content, str):
        return [Message(message.role, message.content)]
    found: list[Message] = []
    calls: list[FunctionCall] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts or calls:
            found.append(Message(message.role, "".join(texts), tuple(calls)))
            texts.clear()
            calls.clear()

    for number, block in enumerate(message.content):
        match block:
            case Block(type="text", text=str(text)):
                texts.append(text)
            case Block(type="tool_use", id=str(call_id), name=str(name), input=dict(arguments)):
                calls.append(FunctionCall(call_id, name, json.dumps(arguments, ensure_ascii=False)))
            case Block(type="tool_result", tool_use_id=str(call_id)):
                end_text()
                found.append(Message("tool", text_of(block.content, f"{place}.content.{number}"), (), call_id))
            case Block(type="thinking" | "redacted_thinking"):
                continue
            case _:
                expected = "text, tool_use (id, name, input) or tool_result (tool_use_id, content)"
                error = f"{place}.content.{number} has the type {block.type!r}; expected {expected}"
                raise ApiError(400, error, param="messages")
    end_text()
    return found or [Message(message.role)]


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_block(call: FunctionCall, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _ending(request: ParsedRequest[MessagesRequest], choice: Choice, decode: Decode) -> dict[str, Any]:
    """The reason of the end, and the stop sequence that was found."""
    reason, found = STOP_REASONS[choice.finish], None
    if choice.finish == FinishReason.STOP and request.call.stops:
        text = decode(choice.ids)
        found = next((stop for stop in request.call.stops if stop in text), None)
    return {"stop_reason": "stop_sequence" if found else reason, "stop_sequence": found}


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": len(reply.prompt_ids), "output_tokens": sum(len(choice.ids) for choice in reply.choices)}


def _head(request: ParsedRequest[MessagesRequest]) -> dict[str, Any]:
    name = f"msg_{secrets.token_hex(12)}"
    return {"id": name, "type": "message", "role": "assistant", "model": request.model}


def respond(request: ParsedRequest[MessagesRequest], reply: Reply, decode: Decode) -> dict[str, Any]:
    (choice,) = reply.choices
    texts = [_text_block(choice.content)] if choice.content else []
    content = texts + [_tool_block(call, json.loads(call.arguments)) for call in choice.tool_calls]
    return {**_head(request), "content": content, **_ending(request, choice, decode), "usage": _usage(reply)}


class MessageWriter:
    """Writes a reply as events; the last but one has the usage, because the prompt is counted only at the end."""

    def __init__(self, request: ParsedRequest[MessagesRequest], decode: Decode) -> None:
        self._request, self._decode = request, decode
        self._sent = 0  # characters of the text

    def start(self) -> bytes:
        ending = {"stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": 0, "output_tokens": 0}
        return _event("message_start", message={**_head(self._request), "content": [], **ending, "usage": usage})

    def content(self, index: int, text: str) -> bytes:  # noqa: ARG002  there is one choice
        if not text:
            return b""
        begun = b"" if self._sent else _event("content_block_start", index=0, content_block=_text_block(""))
        self._sent += len(text)
        return begun + _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def end(self, reply: Reply) -> bytes:
        (choice,) = reply.choices
        events = [self.content(0, choice.content[self._sent :])]
        if self._sent:
            events.append(_event("content_block_stop", index=0))
        for index, call in enumerate(choice.tool_calls, start=1 if self._sent else 0):
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            events.append(_event("content_block_start", index=index, content_block=_tool_block(call, {})))
            events.append(_event("content_block_delta", index=index, delta=delta))
            events.append(_event("content_block_stop", index=index))
        ending = _ending(self._request, choice, self._decode)
        events.append(_event("message_delta", delta=ending, usage=_usage(reply)))
        events.append(_event("message_stop"))
        return b"".join(events)

    def error(self, problem: HttpProblem) -> bytes:
        return event(error_body(problem), "error")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


API = Api(parse, respond, MessageWriter, error_response)
