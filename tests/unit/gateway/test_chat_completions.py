"""Chat completions: requests become calls, and replies become responses and chunks."""

import json
from typing import Any

import pytest

from sleuth.gateway.api import ApiError, ParsedRequest, error_body
from sleuth.gateway.calls import Call, Choice, FinishReason, FunctionCall, Message, Reply
from sleuth.gateway.chat_completions import API, ChatRequest, ChatWriter, parse, respond

ASKED = [{"role": "user", "content": "Where?"}]
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": SCHEMA}}
REPLY = Reply(
    (1, 2, 3),
    (
        Choice("Let me see.", (FunctionCall("call_1", "search", '{"query": "Oslo"}'),), FinishReason.TOOL_CALLS,
               (4, 5), (-0.5, -0.25)),
        Choice("Oslo", (), FinishReason.STOP, (6,), (-1.0,)),
    ),
)  # fmt: skip


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "policy", "messages": ASKED, **fields}).encode()


def decode(ids: Any) -> str:
    return "".join(f"<{token}>" for token in ids)


def refusal(content: bytes) -> dict[str, Any]:
    with pytest.raises(ApiError) as refused:
        parse(content)
    assert refused.value.status == 400
    error: dict[str, Any] = error_body(refused.value)["error"]
    assert error["type"] == "invalid_request_error"
    return error


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = [part.removeprefix("data: ") for part in stream.decode().split("\n\n") if part]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_request_becomes_a_call() -> None:
    request = parse(
        body(
            model="policy/writer", tools=[SEARCH], tool_choice={"type": "function", "function": {"name": "search"}},
            stop="\n", n=2, temperature=1, top_p=0.9, top_k=-1, min_p=0.1, seed=-1, max_tokens=9,
            max_completion_tokens=5, include_stop_str_in_output=True, user="ada", parallel_tool_calls=True,
        )
    )  # fmt: skip
    assert request.call == Call(
        (Message("user", "Where?"),), role="writer", functions=(SEARCH,), tool_choice="search", stops=("\n",),
        include_stop=True, max_tokens=5, temperature=1.0, top_p=0.9, top_k=0, min_p=0.1, seed=-1, n=2,
    )  # fmt: skip
    assert (request.model, request.stream, request.is_policy) == ("policy/writer", False, True)
    assert parse(body()).call == Call((Message("user", "Where?"),))
    other = parse(body(model="gpt-4/policy"))
    assert (other.model, other.is_policy, other.call.role) == ("gpt-4/policy", False, "")


def test_messages_of_every_role() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query":"Oslo"}'}, "index": 0}
    request = parse(
        body(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]},
                {"role": "user", "content": "Where?", "name": "ada"},
                {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": [],
                 "audio": None, "function_call": None},
                {"role": "tool", "tool_call_id": "c1", "content": "In Norway."},
            ]
        )
    )  # fmt: skip
    assert request.call.prompt == (
        Message("system", "Be short."),
        Message("user", "Where?"),
        Message("assistant", "", (FunctionCall("c1", "search", '{"query":"Oslo"}'),)),
        Message("tool", "In Norway.", (), "c1"),
    )


def test_a_response_has_choices_and_usage() -> None:
    found = respond(parse(body(n=2)), REPLY, decode)
    assert (found["object"], found["model"]) == ("chat.completion", "policy")
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    first, second = found["choices"]
    assert first["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Oslo"}'}}
    ]
    assert (first["message"]["content"], first["finish_reason"]) == ("Let me see.", "tool_calls")
    assert (second["message"]["content"], second["finish_reason"], second["index"]) == ("Oslo", "stop", 1)
    assert "token_ids" not in second
    assert second["logprobs"] is None


def test_logprobs_and_token_ids_where_asked() -> None:
    found = respond(parse(body(n=2, logprobs=True, top_logprobs=0, return_token_ids=True)), REPLY, decode)
    assert found["prompt_token_ids"] == (1, 2, 3)
    assert [choice["token_ids"] for choice in found["choices"]] == [(4, 5), (6,)]
    assert found["choices"][1]["logprobs"]["content"] == [
        {"token": "<6>", "logprob": -1.0, "bytes": [60, 54, 62], "top_logprobs": []}
    ]
    broken = respond(parse(body(logprobs=True)), REPLY, lambda _: "\ufffd")
    assert broken["choices"][0]["logprobs"]["content"][0]["bytes"] is None


def merged(request: ParsedRequest[ChatRequest]) -> list[dict[str, Any]]:
    stream = ChatWriter(request, decode)
    return events(stream.start() + stream.content(1, "Os") + stream.content(0, "") + stream.end(REPLY))


def test_chunks_add_up_to_the_response() -> None:
    request = parse(
        body(n=2, stream=True, stream_options={"include_usage": True}, logprobs=True, return_token_ids=True)
    )
    chunks, whole = merged(request), respond(request, REPLY, decode)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"] == whole["usage"]
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, choice in enumerate(whole["choices"]):
        mine = [part for part in parts if part["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(part["delta"].get("content") or "" for part in mine) == choice["message"]["content"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert mine[-1]["token_ids"] == list(choice["token_ids"])
        assert mine[-1]["logprobs"]["content"] == choice["logprobs"]["content"]
        calls = [call for part in mine for call in part["delta"].get("tool_calls", ())]
        assert [{key: call[key] for key in ("id", "type", "function")} for call in calls] == choice["message"].get(
            "tool_calls", []
        )
    assert any(chunk.get("prompt_token_ids") == [1, 2, 3] for chunk in chunks)
    assert all("usage" not in chunk for chunk in merged(parse(body(n=2, stream=True))))


def test_an_error_in_a_stream_has_the_shape_of_errors() -> None:
    stream = API.writer(parse(body(stream=True)), decode)
    line = stream.error(ApiError(503, "the engine is gone", code="engine_failed"))
    assert json.loads(line.removeprefix(b"data: "))["error"]["code"] == "engine_failed"


@pytest.mark.parametrize(
    "neutral",
    [{"tools": []}, {"tool_choice": "auto"}, {"stop": None}, {"stop": []}, {"stop": ""}, {"top_logprobs": 0},
     {"response_format": {"type": "text"}}, {"presence_penalty": 0.0}, {"logprobs": False}, {"min_tokens": 0},
     {"skip_special_tokens": True}, {"metadata": {"a": 1}}, {"web_search_options": None}],
)  # fmt: skip
def test_fields_without_effect_are_accepted(neutral: dict[str, Any]) -> None:
    assert parse(body(**neutral)).call == Call((Message("user", "Where?"),))


@pytest.mark.parametrize(
    ("name", "value"),
    [("functions", [{"name": "f"}]), ("response_format", {"type": "json_object"}), ("frequency_penalty", 0.5),
     ("logit_bias", {"50": 1}), ("modalities", ["audio"]), ("min_tokens", 3),
     ("chat_template_kwargs", {"think": False}),
     ("stop_token_ids", [3]), ("reasoning_effort", "high")],
)  # fmt: skip
def test_unsupported_fields_are_refused_by_name(name: str, value: object) -> None:
    error = refusal(body(**{name: value}))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def tool(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("content", "param", "fact"),
    [
        (b"{", None, "not JSON"),
        (b"[]", None, "the body"),
        (b"\xff", None, "not JSON"),
        (b"{}", "messages", "messages is missing"),
        (body(messages=[]), "messages", "messages is empty"),
        (body(messages=["hello"]), "messages", "messages.0"),
        (body(messages=[{"role": "king", "content": ""}]), "messages", "'king'"),
        (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages", "'image_url'"),
        (body(messages=[{"role": "user", "content": 3}]), "messages", "messages.0.content is 3"),
        (body(messages=[{"role": "assistant", "tool_calls": [{"id": "c"}]}]), "messages", "tool_calls.0.function"),
        (body(temperature=3), "temperature", "3"),
        (body(temperature="warm"), "temperature", '"warm"'),
        (body(temperature=float("nan")), "temperature", "NaN"),
        (body(max_tokens=0), "max_tokens", "0"),
        (body(seed=2**64), "seed", "seed"),
        (body(n=10**9), "n", "128"),
        (body(n=True), "n", "true"),
        (body(stop=["a", ""]), "stop", "none empty"),
        (body(stop=[str(number) for number in range(17)]), "stop", "16"),
        (body(stop=[1]), "stop", "stop.0"),
        (body(top_logprobs=5, logprobs=True), "top_logprobs", "expected 0"),
        (body(stream_options={"include_usage": True}), "stream_options", "stream"),
        (body(best_of=3), "best_of", "'best_of'"),
        (body(tool_choice="required"), "tool_choice", "no tools"),
        (body(tool_choice="always"), "tool_choice", '"always"'),
        (body(tools=[SEARCH], tool_choice={"type": "function"}), "tool_choice", "tool_choice.function is missing"),
        (body(tools=[SEARCH], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice", "'g'"),
        (body(tools=[{"type": "web_search"}]), "tools", '"web_search"'),
        (body(tools=[{"type": "function"}]), "tools", "tools.0.function is missing"),
        (body(tools=tool(name="a b")), "tools", "'a b'"),
        (body(tools=tool(name="required")), "tools", "'required'"),
        (body(tools=[SEARCH, SEARCH]), "tools", "tools.1"),
        (body(tools=[SEARCH] * 129), "tools", "129"),
        (body(tools=tool(parameters=[])), "tools", "tools.0 (f)"),
        (body(tools=tool(parameters={"type": "string"})), "tools", "'object'"),
        (body(tools=tool(parameters={"type": "object", "properties": []})), "tools", "parameters.properties"),
        (body(tools=tool(parameters={"type": "object", "properties": {"a": {"type": "text"}}})), "tools", "'text'"),
        (body(tools=tool(parameters={"type": "object", "required": "a"})), "tools", "parameters.required"),
        (body(tools=tool(parameters={"type": "object", "properties": {"a": {"anyOf": 1}}})), "tools", "a.anyOf"),
        (body(tools=tool(parameters={"type": "object", "properties": {"a": {"items": 1}}})), "tools", "a.items"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_its_field(content: bytes, param: str | None, fact: str) -> None:
    error = refusal(content)
    assert error["param"] == param
    assert fact in error["message"]


def test_a_lone_surrogate_is_replaced() -> None:
    content = body(messages=[{"role": "user", "content": "SURROGATE"}]).replace(b"SURROGATE", rb"a\ud800b")
    assert parse(content).call.prompt == (Message("user", "a?b"),)
