"""Anthropic's messages: requests of its client, whole messages, events and errors."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from sleuth.gateway.anthropic import API, parse, respond
from sleuth.gateway.api import ApiError
from sleuth.gateway.calls import Call, Choice, FinishReason, FunctionCall, Message, Reply

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"name": "search", "description": "Finds.", "input_schema": SCHEMA}
ASKED = [{"role": "user", "content": "Where?"}]
# The second request of anthropic 2.8.0 after a call of a tool.
RETURNED = [
    *ASKED,
    {"role": "assistant", "content": [
        {"text": "Let me see.", "type": "text"},
        {"id": "call_1", "input": {"query": "Röm"}, "name": "search", "type": "tool_use"},
        {"id": "call_2", "input": {"query": "Oslo"}, "name": "search", "type": "tool_use"},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "In Italy."},
        {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "In Norway."}]},
        {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
    ]},
]  # fmt: skip
CALLS = Choice(
    "Let me see.", (FunctionCall("call_1", "search", '{"query": "Röm"}'),), FinishReason.TOOL_CALLS, (4, 5), (-1, -1)
)
TEXT = Choice("Oslo", (), FinishReason.STOP, (4, 5), (-1, -1))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "policy", "max_tokens": 9, "messages": ASKED, **fields}).encode()


def decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


def test_a_request_becomes_a_call() -> None:
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "short.", "cache_control": None}]
    request = parse(
        body(messages=RETURNED, model="policy/writer", system=system, tools=[SEARCH], top_k=3, top_p=0.5, stream=True,
             tool_choice={"type": "tool", "name": "search"}, stop_sequences=["\n"], temperature=1.0, metadata={})
    )  # fmt: skip
    calls = (
        FunctionCall("call_1", "search", '{"query": "Röm"}'),
        FunctionCall("call_2", "search", '{"query": "Oslo"}'),
    )
    function = {"name": "search", "description": "Finds.", "parameters": SCHEMA}
    assert request.stream
    assert request.call == Call(
        (
            Message("system", "Be short."),
            Message("user", "Where?"),
            Message("assistant", "Let me see.", calls),
            Message("tool", "In Italy.", (), "call_1"),
            Message("tool", "In Norway.", (), "call_2"),
            Message("user", "Go on."),
        ),
        role="writer",
        functions=({"type": "function", "function": function},),
        tool_choice="search", stops=("\n",), max_tokens=9, temperature=1.0, top_p=0.5, top_k=3,
    )  # fmt: skip


@pytest.mark.parametrize(("choice", "meaning"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_choices_of_tools(choice: str, meaning: str) -> None:
    assert parse(body(tools=[SEARCH], tool_choice={"type": choice})).call.tool_choice == meaning


def test_a_message_has_blocks_and_usage() -> None:
    found = respond(parse(body()), Reply((1, 2, 3), (CALLS,)), decode)
    assert found["content"] == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "call_1", "name": "search", "input": {"query": "Röm"}},
    ]
    assert (found["stop_reason"], found["usage"]) == ("tool_use", {"input_tokens": 3, "output_tokens": 2})


@pytest.mark.parametrize(
    ("choice", "stops", "ending"),
    [
        (TEXT, [], ("end_turn", None)),
        (TEXT, ["<5>"], ("stop_sequence", "<5>")),
        (TEXT, ["<6>"], ("end_turn", None)),
        (Choice("Oslo", (), FinishReason.LENGTH, (4,), (-1,)), ["<4>"], ("max_tokens", None)),
    ],
)
def test_the_reason_of_the_end(choice: Choice, stops: list[str], ending: tuple[str, str | None]) -> None:
    found = respond(parse(body(stop_sequences=stops)), Reply((1,), (choice,)), decode)
    assert (found["stop_reason"], found["stop_sequence"]) == ending


def test_events_add_up_to_the_message() -> None:
    request, reply = parse(body(stream=True)), Reply((1, 2, 3), (CALLS,))
    writer = API.writer(request, decode)
    stream = writer.start() + writer.content(0, "Let") + writer.end(reply)
    events = [json.loads(part.partition("\ndata: ")[2]) for part in stream.decode().split("\n\n") if part]
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert all(part.startswith(f"event: {event['type']}\n") for part, event in zip(
        stream.decode().split("\n\n"), events, strict=False
    ))  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Let me see."
    assert json.loads(deltas[-1]["partial_json"]) == {"query": "Röm"}
    assert events[5]["content_block"] == {"type": "tool_use", "id": "call_1", "name": "search", "input": {}}
    assert events[-2]["usage"] == respond(request, reply, decode)["usage"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_errors_have_its_format() -> None:
    refused = API.error_response(ApiError(404, "there is no such rollout"))
    assert refused.status_code == 404
    expected = {"type": "error", "error": {"type": "not_found_error", "message": "there is no such rollout"}}
    assert json.loads(bytes(refused.body)) == expected
    event = API.writer(parse(body(stream=True)), decode).error(ApiError(503, "the engine is gone"))
    assert event.startswith(b"event: error\n")
    assert json.loads(event.partition(b"data: ")[2])["error"] == {"type": "api_error", "message": "the engine is gone"}


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"model": "policy", "messages": [{"role": "user", "content": ""}]}', "max_tokens"),
        (body(messages=[{"role": "system", "content": "Be short."}]), "messages"),
        (body(messages=[{"role": "user", "content": [{"type": "image"}]}]), "messages"),
        (body(messages=[{"role": "assistant", "content": [{"type": "tool_use", "id": "c"}]}]), "messages"),
        (body(tools=[{"name": "search"}]), "tools"),
        (body(tools=[{**SEARCH, "input_schema": {"type": "object", "properties": 3}}]), "tools"),
        (body(tools=[{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]), "tools"),
        (body(tool_choice={"type": "tool", "name": "search"}), "tool_choice"),
        (body(tool_choice={"type": "any"}), "tool_choice"),
        (body(stop_sequences=[""] * 2 + ["a"]), "stop_sequences"),
        (body(thinking={"type": "enabled", "budget_tokens": 1024}), "thinking"),
        (body(n=2), "n"),
    ],
)
def test_bad_requests_name_their_field(content: bytes, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(content)
    assert (refused.value.status, refused.value.param) == (400, param)
