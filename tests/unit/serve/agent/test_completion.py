"""The service as the official client sees it: answers whole and streamed, their sources, what they cost."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from sleuth.serve.agent.server import ServerLimits

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Emma"}]
SOURCE = {
    "for": "Emma",
    "id": "Emma",
    "title": "Emma",
    "text": "A book about Emma.",
    "score": 2,
    "url": "https://books.example/Emma",
}
STEPS = [
    {"index": 0, "type": "search", "queries": ["Emma"], "thought": "I need Emma.", "sources": [SOURCE]},
    {"index": 1, "type": "answer", "thought": "It is about Emma."},
]


def untimed(error_body: dict[str, Any]) -> dict[str, Any]:
    """What is error_body of an episode, less the seconds, which no two share."""
    steps = [{key: value for key, value in step.items() if key != "seconds"} for step in error_body["steps"]]
    return {**{key: value for key, value in error_body.items() if key != "seconds"}, "steps": steps}


def test_an_answer_with_its_searches_and_sources(house: Any) -> None:
    found = house.client().chat.completions.create(model="wise", messages=ASKED)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason, found.model) == ("Emma", "stop", "wise")
    assert choice.message.model_extra["reasoning_content"] == "I need Emma.\n\nIt is about Emma."
    error_body = choice.message.model_extra["sleuth"]
    assert untimed(error_body) == {"steps": STEPS, "stop": "answered", "searches": 1}
    assert 0 <= error_body["steps"][0]["seconds"] <= error_body["seconds"]
    usage = found.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > usage.completion_tokens > 0


def test_chunks_add_up_to_the_same_answer(house: Any) -> None:
    """The client's own way of merging chunks is the one they are made for."""
    client = house.client()
    whole = client.chat.completions.create(model="wise", messages=ASKED)
    with client.chat.completions.stream(
        model="wise", messages=ASKED, stream_options={"include_usage": True}
    ) as streamed:
        merged = streamed.get_final_completion()
    one, other = whole.choices[0].message, merged.choices[0].message
    assert (one.content, one.model_extra["reasoning_content"]) == (
        other.content,
        other.model_extra["reasoning_content"],
    )
    assert untimed(one.model_extra["sleuth"]) == untimed(other.model_extra["sleuth"])
    assert whole.usage == merged.usage
    assert merged.choices[0].finish_reason == "stop"


def test_a_stream_tells_what_happens_while_it_does(house: Any) -> None:
    house.shelf.open.clear()
    seen: list[str] = []
    for chunk in house.client().chat.completions.create(model="wise", messages=ASKED, stream=True):
        assert chunk.usage is None
        extra = chunk.choices[0].delta.model_extra
        seen += ["thought"] if "reasoning_content" in extra else []
        for step in extra.get("sleuth", {}).get("steps", ()):
            seen.append(step.get("type", "sources"))
            if step.get("type") == "search":
                # It is error_body of the search before there is anything found.
                house.shelf.open.set()
    assert [one for one, before in zip(seen, ["", *seen], strict=False) if one != before] == [
        "thought", "search", "sources", "thought", "answer",
    ]  # fmt: skip


def test_models(house: Any) -> None:
    client = house.client()
    (model,) = client.models.list()
    assert (model.id, model.created, model.owned_by) == ("wise", 7, "sleuth")
    assert model.model_extra["sleuth"]["index"] == "books"
    assert client.models.retrieve("wise") == model
    with pytest.raises(openai.NotFoundError, match="there is no model 'a/b'") as error:
        client.models.retrieve("a/b")
    assert error.value.code == "model_not_found"


def test_tokens_run_out(serving: Callable[..., Any]) -> None:
    with serving(ServerLimits(max_tokens=12)) as house:
        for wanted, most in ((None, 12), (5, 5), (1000, 12)):
            found = house.client().chat.completions.create(model="wise", messages=ASKED, max_completion_tokens=wanted)
            assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("", "length")
            assert found.choices[0].message.model_extra["sleuth"]["stop"] == "max_tokens"
            assert found.usage.completion_tokens == most


def test_turns_run_out(house: Any) -> None:
    asked = [{"role": "user", "content": "Say babble"}]
    found = house.client().chat.completions.create(model="wise", messages=asked)
    error_body = found.choices[0].message.model_extra["sleuth"]
    assert (found.choices[0].finish_reason, error_body["stop"]) == ("length", "out_of_turns")
    assert [step["type"] for step in error_body["steps"]] == ["malformed"] * 3


@pytest.mark.parametrize(
    ("question", "status", "code", "sentence"),
    [
        ("What is closed", 503, "search_unavailable", "the shelf is closed"),
        ("Please break", 500, "engine_failed", "the device is lost"),
        ("What is lost", 503, None, "the catalogue changed"),
        ("What is burnt", 500, None, "ZeroDivisionError"),
    ],
)
def test_what_failed_is_an_error_whole_and_streamed(
    house: Any, question: str, status: int, code: str | None, sentence: str
) -> None:
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    with pytest.raises(openai.APIStatusError, match=sentence) as error:
        house.client().chat.completions.create(model="wise", messages=asked)
    assert (error.value.status_code, error.value.code) == (status, code)
    with pytest.raises(openai.APIError, match=sentence) as error_in_stream:
        list(house.client().chat.completions.create(model="wise", messages=asked, stream=True))
    assert error_in_stream.value.code == code
    assert house.health()["under_way"] == 0


def test_a_question_that_leaves_no_room(serving: Callable[..., Any]) -> None:
    long = [{"role": "user", "content": "word " * 150}]
    with serving(ServerLimits(max_prompt=10)) as house:
        for asked in (long, [{"role": "user", "content": "Is it a b c d e f g h i j k"}]):
            with pytest.raises(openai.BadRequestError, match="maximum is 10") as error:
                house.client().chat.completions.create(model="wise", messages=asked)
            assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")


def test_the_seed_of_a_request_decides(house: Any) -> None:
    found = [
        house.client().chat.completions.create(model="wise", messages=ASKED, seed=7, temperature=1, top_p=0.5)
        for _ in range(2)
    ]
    assert found[0].choices[0].message.content == found[1].choices[0].message.content == "Emma"
    assert found[0].id != found[1].id


def test_what_a_question_cost_is_counted(house: Any) -> None:
    house.client().chat.completions.create(model="wise", messages=ASKED)
    assert house.figure('sleuth_episodes_total{stop="answered"}') == 1
    assert house.figure("sleuth_searches_total") == 1
    assert house.figure('sleuth_requests_total{path="/v1/chat/completions",status="200"}') == 1
    assert httpx.get(f"{house.url}/health").json() == {"status": "ok", "under_way": 0, "places": 64, "waiting": 0}


def test_several_answers(house: Any) -> None:
    client = house.client()
    whole = client.chat.completions.create(model="wise", messages=ASKED, n=3, temperature=1, seed=5)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [
        (0, "Emma"),
        (1, "Emma"),
        (2, "Emma"),
    ]
    assert all(untimed(choice.message.model_extra["sleuth"])["steps"] == STEPS for choice in whole.choices)
    one = client.chat.completions.create(model="wise", messages=ASKED)
    assert whole.usage.total_tokens == 3 * one.usage.total_tokens
    with client.chat.completions.stream(
        model="wise", messages=ASKED, n=3, stream_options={"include_usage": True}
    ) as streamed:
        merged = streamed.get_final_completion()
    assert merged.usage == whole.usage
    assert sorted((choice.index, choice.message.content) for choice in merged.choices) == [
        (0, "Emma"), (1, "Emma"), (2, "Emma"),
    ]  # fmt: skip
    assert house.figure('sleuth_episodes_total{stop="answered"}') == 7


def test_answers_wait_for_slots_one_by_one(serving: Callable[..., Any]) -> None:
    """Requests with several answers cannot block each other."""

    def ask(_: int) -> list[str]:
        found = client.chat.completions.create(model="wise", messages=ASKED, n=2)
        return [choice.message.content for choice in found.choices]

    with serving(ServerLimits(slots=2), opened=False) as house, ThreadPoolExecutor(3) as pool:
        client = house.client()
        answers = pool.map(ask, range(3))
        until = time.monotonic() + 10
        while house.health()["waiting"] != 4 and time.monotonic() < until:
            time.sleep(0.01)
        house.shelf.open.set()
        assert list(answers) == [["Emma", "Emma"]] * 3
        with pytest.raises(openai.BadRequestError, match="the maximum is 2") as error:
            client.chat.completions.create(model="wise", messages=ASKED, n=3)
        assert error.value.param == "n"


def test_an_answer_without_a_slot_refuses_the_request(serving: Callable[..., Any]) -> None:
    with serving(ServerLimits(slots=2, wait=0), opened=False) as house:
        client = house.client()
        stream = client.chat.completions.create(model="wise", messages=ASKED, stream=True)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="wise", messages=ASKED, n=2)
        house.shelf.open.set()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Emma"
        assert house.health()["under_way"] == 0


@pytest.mark.parametrize(("stop", "answer"), [("mm", "E"), (["a", "Em"], ""), ("x", "Emma"), ("book", "Emma")])
def test_an_answer_ends_before_a_stop_string(house: Any, stop: str | list[str], answer: str) -> None:
    found = house.client().chat.completions.create(model="wise", messages=ASKED, stop=stop)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (answer, "stop")


@pytest.mark.parametrize("question", ["What is Emma", "Name the answer", "What is a"])
def test_logprobs_of_the_answer(house: Any, question: str) -> None:
    """Also of an answer that its closing tag or a thought contains."""
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    client = house.client()
    whole = client.chat.completions.create(model="wise", messages=asked, logprobs=True)
    with client.chat.completions.stream(model="wise", messages=asked, logprobs=True) as streamed:
        for _ in streamed:
            continue
        merged = streamed.get_final_completion()
    for found in (whole, merged):
        tokens = found.choices[0].logprobs.content
        assert "".join(token.token for token in tokens).strip() == question.split()[-1]
        assert all(token.logprob <= 0 for token in tokens)
    nothing = client.chat.completions.create(model="wise", messages=asked, logprobs=True, max_tokens=1)
    assert nothing.choices[0].logprobs.content == []


def test_tools_of_the_agent_may_be_listed(house: Any) -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    found = house.client().chat.completions.create(model="wise", messages=ASKED, tools=[tool], tool_choice="auto")
    assert (found.choices[0].message.content, found.choices[0].message.tool_calls) == ("Emma", None)
