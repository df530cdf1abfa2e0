"""Requests: what is read, what has no effect and is taken, what would have one and is refused."""

import json
from typing import Any

import pytest

from sleuth.gateway.api import ApiError, error_body
from sleuth.serve.agent.request import parse_request

ASKED = [{"role": "user", "content": "Where?"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "wise", "messages": ASKED, **fields}).encode()


def refusal(content: bytes) -> dict[str, Any]:
    with pytest.raises(ApiError) as denied:
        parse_request(content)
    assert denied.value.status == 400
    error: dict[str, Any] = error_body(denied.value)["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_a_request_is_read() -> None:
    wanted = parse_request(
        body(temperature=1, top_p=0.9, seed=-3, max_tokens=9, max_completion_tokens=5, user="ada", store=True)
    )
    assert (wanted.temperature, wanted.top_p, wanted.seed, wanted.token_limit) == (1.0, 0.9, -3, 5)


@pytest.mark.parametrize(
    "neutral",
    [{"n": 1}, {"tools": []}, {"tool_choice": "auto"}, {"stop": None}, {"response_format": {"type": "text"}},
     {"presence_penalty": 0.0}, {"logprobs": False}],
)  # fmt: skip
def test_what_changes_nothing_is_taken(neutral: dict[str, Any]) -> None:
    assert parse_request(body(**neutral)).model == "wise"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("return_token_ids", True),
        ("include_stop_str_in_output", True),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"50": 1}),
        ("modalities", ["audio"]),
    ],
)
def test_what_would_have_no_effect_is_refused(field: str, value: object) -> None:
    error = refusal(body(**{field: value}))
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert "which is not supported" in error["message"]


@pytest.mark.parametrize(
    ("content", "param", "sentence"),
    [
        (b"{", None, "the body is not JSON"),
        (b"[]", None, "the body"),
        (b"{}", "messages", "messages is missing; expected"),
        (body(messages=[]), "messages", "messages is empty"),
        (body(messages=["hello"]), "messages", "messages.0"),
        (body(temperature=3), "temperature", "temperature is 3; expected less than or equal to 2"),
        (body(temperature="warm"), "temperature", '"warm"'),
        (body(max_tokens=0), "max_tokens", "greater than or equal to 1"),
        (body(best_of=3), "best_of", "'best_of'"),
        (body(stream_options={"include_usage": True}), "stream_options", "stream_options"),
    ],
)
def test_what_cannot_be_read_is_said(content: bytes, param: str | None, sentence: str) -> None:
    error = refusal(content)
    assert error["param"] == param
    assert sentence in error["message"]


def test_tools_are_those_of_the_agent() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("search", "add")]
    assert parse_request(body(tools=tools), ["add", "search"]).tools is not None
    for content, own in ((body(tools=tools), ["search"]), (body(tools=tools[:1]), ["search", "add"]),
                         (body(tools=tools[:1], tool_choice="none"), ["search"])):  # fmt: skip
        with pytest.raises(ApiError, match=f"its own tools, which are {', '.join(own)}") as refused:
            parse_request(content, own)
        assert refused.value.param == "tools"


@pytest.mark.parametrize("stop", [["a", ""], ["a"] * 2 + [str(number) for number in range(16)]])
def test_bad_stop_strings_are_refused(stop: list[str]) -> None:
    assert refusal(body(stop=stop))["param"] == "stop"
