"""OpenAI's /v1/responses, which keeps no state here: requests, whole responses, and typed events."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from sleuth.gateway.api import (
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
    text_of,
)
from sleuth.gateway.calls import Call, Choice, FinishReason, FunctionCall, Message, Reply
from sleuth.gateway.chat_completions import (
    AS_IN_TRAINING,
    IGNORED,
    INSTRUCTION_ROLES,
    chat_logprobs,
    usage_of,
)
from sleuth.gateway.functions import check_tool_choice, declare_functions
from sleuth.http.responses import HttpProblem

LOGPROBS = "message.output_text.logprobs"  # the value of `include` that asks for logprobs
NO_STATE = "responses are not stored; send the conversation in input"


class Item(Strict):
    """An item of the conversation: a message, a function call, or the result of one."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ResponseTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Any = None


class NamedFunction(Strict):
    """The function that the model has to call."""

    type: Literal["function"]
    name: str


class ResponseRequest(ApiRequest):
    """A request for a response."""

    ignored: ClassVar = IGNORED | {"stream_options", "max_tool_calls"}
    unsupported: ClassVar[Mapping[str, tuple[Sequence[object], str]]] = {
        "background": ((False,), "the response is sent on this connection"),
        "context_management": (([],), NO_STATE),
        "conversation": ((), NO_STATE),
        "previous_response_id": ((), NO_STATE),
        "prompt": ((), "prompts are not stored; send the text in input"),
        "reasoning": (({}, {"effort": "none"}, {"effort": None}), AS_IN_TRAINING),
        "text": (({}, {"format": {"type": "text"}}), "the model writes free text"),
        "top_logprobs": ((0,), "only the logprobs of sampled tokens are returned"),
        "truncation": (("disabled",), "the prompt is not shortened"),
    }
    example = '{"model": "...", "input": "..."}'

    input: str | list[Item]
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Positive | None = None
    include: list[str] | None = None


def parse(body: bytes) -> ParsedRequest[ResponseRequest]:
    request = parse_request(body, ResponseRequest)
    functions = declare_functions([(each.name, each.description, each.parameters) for each in request.tools or ()])
    choice = request.tool_choice or "auto"
    instructions = [Message("system", request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        messages = [Message("user", request.input)]
    else:
        # The model's reasoning is part of its text, so items of it hold nothing.
        items = [(place, item) for place, item in enumerate(request.input) if item.type != "reasoning"]
        messages = [_message(f"input.{place}", item) for place, item in items]
    call = Call(
        prompt=(*instructions, *messages),
        role=role_of(request.model),
        functions=functions,
        tool_choice=check_tool_choice(choice if isinstance(choice, str) else choice.name, functions),
        parallel_calls=request.parallel_tool_calls is not False,
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
    )
    return ParsedRequest(call, request)


def _message(place: str, item: Item) -> Message:
    match item:
        case Item(type="message", role=str(role)):
            text = text_of(item.content, place, ("input_text", "output_text", "text"))
            return Message("system" if role in INSTRUCTION_ROLES else role, text)
        case Item(type="function_call", call_id=str(call_id), name=str(name), arguments=str(arguments)):
            return Message("assistant", "", (FunctionCall(call_id, name, arguments),))
        case Item(type="function_call_output", call_id=str(call_id)):
            return Message("tool", text_of(item.output, place, ("input_text", "text")), (), call_id)
    expected = (
        "message (role, content), function_call (call_id, name, arguments) or function_call_output (call_id, output)"
    )
    raise ApiError(
        400, f"{place} is an item of type {item.type!r} that cannot be read; expected {expected}", param="input"
    )


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _head(request: ParsedRequest[ResponseRequest]) -> dict[str, Any]:
    """The fields of a response that do not depend on the reply."""
    sent = request.body.model_dump(include={"instructions", "max_output_tokens", "temperature", "top_p"})
    asked = request.body.model_dump(include={"tools", "tool_choice"}, exclude_none=True)
    parallel = request.call.parallel_calls
    fixed = {"parallel_tool_calls": parallel, "previous_response_id": None, "store": False, "truncation": "disabled"}
    head = {"id": _new_id("resp"), "object": "response", "created_at": int(time.time()), "model": request.model}
    return {
        **head,
        **sent,
        **fixed,
        "tools": asked.get("tools", []),
        "tool_choice": asked.get("tool_choice", "auto"),
        "text": {"format": {"type": "text"}},
        "metadata": {},
        "error": None,
    }


def _body(head: Mapping[str, Any], reply: Reply, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cut = reply.choices[0].finish == FinishReason.LENGTH
    usage = usage_of(reply)
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message_item(item_id: str, *parts: Mapping[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": parts}


def _call_item(item_id: str, call: FunctionCall) -> dict[str, Any]:
    item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.name}
    return {**item, "arguments": call.arguments, "status": "completed"}


def _logprobs(request: ResponseRequest, choice: Choice, decode: Decode) -> list[dict[str, Any]]:
    if LOGPROBS not in (request.include or ()):
        return []
    tokens: list[dict[str, Any]] = chat_logprobs(choice.ids, choice.logprobs, decode)["content"]
    return tokens


def respond(request: ParsedRequest[ResponseRequest], reply: Reply, decode: Decode) -> dict[str, Any]:
    (choice,) = reply.choices
    output = [_call_item(_new_id("fc"), call) for call in choice.tool_calls]
    if choice.content or not output:
        part = _text_part(choice.content, _logprobs(request.body, choice, decode))
        output.insert(0, _message_item(_new_id("msg"), part))
    return _body(_head(request), reply, output)


class ResponseWriter:
    """Writes a reply as typed events; logprobs are in the finished text."""

    def __init__(self, request: ParsedRequest[ResponseRequest], decode: Decode) -> None:
        self._request, self._decode, self._head = request, decode, _head(request)
        self._number = 0
        self._text = ""
        self._message: str | None = None  # the id of the message, once it has begun
        self._output: list[dict[str, Any]] = []

    def start(self) -> bytes:
        empty = {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        return self._event("response.created", response=empty) + self._event("response.in_progress", response=empty)

    def content(self, index: int, text: str) -> bytes:  # noqa: ARG002  there is one choice
        if not text:
            return b""
        begun = b"" if self._message else self._begin_message()
        self._text += text
        return begun + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def end(self, reply: Reply) -> bytes:
        (choice,) = reply.choices
        events = [self.content(0, choice.content[len(self._text) :])]
        if not self._message and not choice.tool_calls:
            events.append(self._begin_message())
        if self._message:
            logprobs = _logprobs(self._request.body, choice, self._decode)
            part = _text_part(self._text, logprobs)
            events.append(self._part_event("response.output_text.done", text=self._text, logprobs=logprobs))
            events.append(self._part_event("response.content_part.done", part=part))
            events.append(self._finish_item(_message_item(self._message, part)))
        events += [self._call(call) for call in choice.tool_calls]
        body = _body(self._head, reply, self._output)
        events.append(self._event(f"response.{body['status']}", response=body))
        return b"".join(events)

    def error(self, problem: HttpProblem) -> bytes:
        body = error_body(problem)
        return self._event("error", **{key: body["error"][key] for key in ("code", "message", "param")}, **body)

    def _begin_message(self) -> bytes:
        self._message = _new_id("msg")
        item = _message_item(self._message, status="in_progress")
        added = self._event("response.output_item.added", output_index=0, item=item)
        return added + self._part_event("response.content_part.added", part=_text_part(""))

    def _call(self, call: FunctionCall) -> bytes:
        item = _call_item(_new_id("fc"), call)
        place = {"item_id": item["id"], "output_index": len(self._output)}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return b"".join(
            [
                self._event("response.output_item.added", output_index=len(self._output), item=begun),
                self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
                self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
                self._finish_item(item),
            ]
        )

    def _finish_item(self, item: dict[str, Any]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._message, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(numbered, kind)


API = Api(parse, respond, ResponseWriter)
