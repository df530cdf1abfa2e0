"""The APIs of OpenAI as its official client sees them, whole and streamed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam

from sleuth.gateway import anthropic, chat_completions, completions, responses
from sleuth.gateway.api import KEEP_ALIVE, Api, ApiError
from sleuth.gateway.calls import Choice, FinishReason, FunctionCall, Message, Reply
from sleuth.http.responses import encode_json

APIS = {
    "/v1/chat/completions": chat_completions.API,
    "/v1/completions": completions.API,
    "/v1/responses": responses.API,
}
SCHEMA: dict[str, object] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH: ChatCompletionToolParam = {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
FLAT_SEARCH: FunctionToolParam = {"type": "function", "name": "search", "parameters": SCHEMA, "strict": True}
OSLO, ROME = (FunctionCall(f"call_{name}", "search", json.dumps({"query": name})) for name in ("Oslo", "Röm"))
CALLS = Choice("Let me see.", (OSLO, ROME), FinishReason.TOOL_CALLS, (4, 5), (-0.5, -0.25))
BARE = Choice("", (OSLO,), FinishReason.TOOL_CALLS, (4, 5), (-0.5, -0.25))
TEXT = Choice("It is Oslo.", (), FinishReason.STOP, (4, 5), (-0.5, -0.25))
CUT = Choice("It is", (), FinishReason.LENGTH, (4,), (-0.5,))

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_requests.jsonl").read_text().splitlines()]

Connect = Callable[..., Any]  # mypy does not narrow the unions of the client


def decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


@pytest.fixture
def connect() -> Connect:
    """Return a client whose requests get this reply, and whose streams may fail."""

    def connect_to(
        *choices: Choice, failure: ApiError | None = None, bodies: list[bytes] | None = None
    ) -> openai.OpenAI:
        reply = Reply((1, 2, 3), choices)

        def answer(request: httpx.Request) -> httpx.Response:
            api = APIS[request.url.path]
            (bodies if bodies is not None else []).append(request.content)
            try:
                parsed = api.parse(request.content)
            except ApiError as error:
                refused = api.error_response(error)
                return httpx.Response(refused.status_code, headers=refused.raw_headers, content=bytes(refused.body))
            if not parsed.stream:
                return httpx.Response(200, content=encode_json(api.respond(parsed, reply, decode)))
            writer, pieces = api.writer(parsed, decode), (choices[0].content[:3], choices[0].content[3:5])
            stream = [writer.start(), KEEP_ALIVE, *(writer.content(0, piece) for piece in pieces)]
            stream.append(writer.end(reply) if failure is None else writer.error(failure))
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"".join(stream))

        transport: Any = httpx.Client(transport=httpx.MockTransport(answer))
        return openai.OpenAI(base_url="http://policy/v1", api_key="none", http_client=transport, max_retries=0)

    return connect_to


@pytest.mark.parametrize("choice", [CALLS, BARE, TEXT])
def test_chat(connect: Connect, choice: Choice) -> None:
    client, asked = connect(choice), {"model": "policy", "messages": [{"role": "user", "content": "Where?"}]}
    whole = client.chat.completions.create(**asked, tools=[SEARCH], logprobs=True)
    with client.chat.completions.stream(
        **asked, tools=[SEARCH], logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            continue
        merged = stream.get_final_completion()
    for found in (whole, merged):
        message = found.choices[0].message
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        assert calls == [(call.id, call.name, call.arguments) for call in choice.tool_calls]
        assert (message.content or "", found.choices[0].finish_reason) == (choice.content, choice.finish)
        assert [token.logprob for token in found.choices[0].logprobs.content] == [-0.5, -0.25]
        assert found.usage.total_tokens == 5


@pytest.mark.parametrize("prompt", ["Where?", [7, 8]])
def test_text(connect: Connect, prompt: str | list[int]) -> None:
    client = connect(TEXT)
    whole = client.completions.create(model="policy", prompt=prompt, logprobs=1, extra_body={"return_token_ids": True})
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == ("It is Oslo.", "stop")
    assert (choice.logprobs.tokens, choice.logprobs.text_offset) == (["<4>", "<5>"], [0, 3])
    assert (choice.model_extra["token_ids"], whole.model_extra["prompt_token_ids"]) == ([4, 5], [1, 2, 3])
    chunks = list(client.completions.create(model="policy", prompt=prompt, stream=True, logprobs=0))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "It is Oslo."
    assert chunks[-1].choices[0].logprobs.token_logprobs == [-0.5, -0.25]


@pytest.mark.parametrize("choice", [CALLS, BARE, TEXT])
def test_responses(connect: Connect, choice: Choice) -> None:
    bodies: list[bytes] = []
    client = connect(choice, bodies=bodies)
    options = {"model": "policy", "tools": [FLAT_SEARCH], "include": [responses.LOGPROBS]}
    whole = client.responses.create(**options, input="Where?", instructions="Be short.")
    with client.responses.stream(**options, input="Where?") as stream:
        numbers = [event.sequence_number for event in stream]
        merged = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    for found in (whole, merged):
        calls = [(item.call_id, item.name, item.arguments) for item in found.output if item.type == "function_call"]
        assert calls == [(call.id, call.name, call.arguments) for call in choice.tool_calls]
        assert (found.output_text, found.status) == (choice.content, "completed")
        assert (found.usage.input_tokens, found.usage.output_tokens) == (3, 2)
        texts = [item.content[0] for item in found.output if item.type == "message"]
        assert [[token.logprob for token in part.logprobs] for part in texts] == [[-0.5, -0.25]] * len(texts)
    # What the client sends back is what it was sent.
    result = {"type": "function_call_output", "call_id": "call_Oslo", "output": "In Norway."}
    client.responses.create(model="policy", input=[{"role": "user", "content": "Where?"}, *merged.output, result])
    said = [Message("assistant", choice.content)] if choice.content else []
    called = [Message("assistant", "", (call,)) for call in choice.tool_calls]
    assert responses.parse(bodies[-1]).call.prompt == (
        Message("user", "Where?"), *said, *called, Message("tool", "In Norway.", (), "call_Oslo"),
    )  # fmt: skip


def test_a_response_that_was_cut(connect: Connect) -> None:
    client = connect(CUT)
    whole = client.responses.create(model="policy", input="Where?", max_output_tokens=1)
    assert (whole.status, whole.incomplete_details.reason, whole.output_text) == (
        "incomplete", "max_output_tokens", "It is",
    )  # fmt: skip
    *_, last = client.responses.create(model="policy", input="Where?", stream=True)
    assert (last.type, last.response.output_text) == ("response.incomplete", "It is")


def test_errors_of_a_stream_are_raised(connect: Connect) -> None:
    client = connect(TEXT, failure=ApiError(503, "the engine is gone", code="engine_failed"))
    asked: list[Any] = [{"role": "user", "content": "Where?"}]
    for stream in (
        client.chat.completions.create(model="policy", messages=asked, stream=True),
        client.completions.create(model="policy", prompt="Where?", stream=True),
        client.responses.create(model="policy", input="Where?", stream=True),
    ):
        with pytest.raises(openai.APIError, match="the engine is gone") as error:
            list(stream)
        assert error.value.code == "engine_failed"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/completions", {"prompt": [-1]}, "prompt"),
        ("/completions", {"prompt": "a", "logprobs": 5}, "logprobs"),
        ("/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/completions", {"prompt": "a", "best_of": 4}, "best_of"),
        ("/completions", {}, "prompt"),
        ("/responses", {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ("/responses", {"input": "a", "tools": [{**FLAT_SEARCH, "parameters": {"type": 3}}]}, "tools"),
        ("/responses", {"input": "a", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ("/responses", {"input": "a", "text": {"format": {"type": "json_object"}}}, "text"),
        ("/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ("/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ("/responses", {"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ("/responses", {"input": "a", "n": 2}, "n"),
    ],
)
def test_bad_requests_name_their_field(connect: Connect, path: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        connect(TEXT).post(path, body={"model": "policy", **fields}, cast_to=httpx.Response)
    assert error.value.param == param


def test_reasoning_items_are_left_out() -> None:
    items = [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "developer", "content": "Be short."}]
    parsed = responses.parse(json.dumps({"model": "policy/writer", "input": items, "store": True}).encode())
    assert (parsed.call.prompt, parsed.call.role) == ((Message("system", "Be short."),), "writer")


@pytest.mark.parametrize("recorded", RECORDED, ids=[each["name"] for each in RECORDED])
def test_requests_of_agent_frameworks(recorded: dict[str, Any]) -> None:
    """The bodies that LangGraph, the OpenAI Agents SDK, pydantic-ai and openai sent after a call of a tool."""
    call = APIS[recorded["path"]].parse(json.dumps(recorded["body"]).encode()).call
    turns = [message for message in call.prompt if isinstance(message, Message)]
    assert Message("user", "Who is the mentor of Ada Byron?") in turns
    assert {message.role for message in turns} >= {"assistant", "tool"}
    calls = [each for message in turns for each in message.tool_calls]
    results = [message.tool_call_id for message in turns if message.role == "tool"]
    assert results[: len(calls)] == [each.id for each in calls]
    assert all(json.loads(each.arguments) for each in calls)
    assert call.functions[0]["function"]["parameters"]["required"] == ["query"]


FIELDS = ("model", "messages", "prompt", "input", "max_tokens", "tools", "tool_choice", "stop", "n", "type", "role",
          "content", "text", "function", "name", "parameters", "properties", "tool_calls", "id", "system", "seed",
          "input_schema", "anyOf", "stream", "stream_options", "stop_sequences", "call_id", "output")  # fmt: skip
WORDS = ("", "user", "function", "text", "object", "message", "function_call", "tool_use", "tool_result", "\ud800", "f")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("api", [*APIS.values(), anthropic.API])
@settings(max_examples=100)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_body_is_parsed_or_refused(api: Api, fields: dict[str, Any]) -> None:
    valid = {
        "messages": [{"role": "user", "content": "Where?"}],
        "prompt": "Where?",
        "input": "Where?",
        "max_tokens": 9,
    }
    needed = {chat_completions.API: ("messages",), completions.API: ("prompt",), responses.API: ("input",)}
    own = needed.get(api, ("messages", "max_tokens"))
    body = {**{name: valid[name] for name in own}, **fields}
    try:
        call = api.parse(json.dumps(body).encode()).call
    except ApiError as error:
        refused = api.error_response(error)
    else:
        assert (call.max_tokens or 1) >= 1
        assert "" not in call.stops
        return
    assert refused.status_code == 400
    assert json.loads(bytes(refused.body))["error"]["message"]
