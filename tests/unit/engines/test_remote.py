"""Requests to an OpenAI-compatible endpoint: fields, replies, retries and errors."""

import asyncio
import time
from typing import Any

import pytest

from sleuth.engines.base import Sampling
from sleuth.engines.remote import ContextFull, Endpoint, Reply, complete_chat, served_model
from sleuth.errors import ConfigError, EngineFailure, InputError

Stage = Any
HELLO = [{"role": "user", "content": "Hello"}]


def talk(endpoint: Endpoint, sampling: Sampling | None = None, *functions: Any) -> Reply:
    async def one() -> Reply:
        async with endpoint.client() as http:
            return await complete_chat(http, endpoint, HELLO, sampling or Sampling(9, temperature=0.0), functions)

    return asyncio.run(one())


def test_optional_fields_are_sent_only_if_needed(stage: Stage) -> None:
    assert talk(stage.endpoint()).content == "<answer> Oslo"
    assert stage.heard == [{"model": "wise", "messages": HELLO, "max_tokens": 9, "temperature": 0.0}]
    talk(stage.endpoint(), Sampling(9, temperature=0.5, stops=("</a>",), seed=2**40 + 3), {"type": "function"})
    assert stage.heard[1] | {"seed": 3, "stop": ["</a>"], "tools": [{"type": "function"}]} == stage.heard[1]


def test_key_comes_from_the_environment_and_is_redacted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    talk(stage.endpoint())
    monkeypatch.setenv("MY_KEY", "sesame")
    stage.play = lambda _: stage.scene({"error": {"message": "no such key: sesame"}}, 401)
    with pytest.raises(EngineFailure, match=r"401 .*no such key: \[key\].*MY_KEY"):
        talk(stage.endpoint(key_env="MY_KEY"))
    assert stage.keys == [None, "Bearer sesame"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "http://", "model": "m"}, "http://"),
        ({"url": "http://a:b@host/v1", "model": "m"}, "--key-env"),
        ({"url": "http://host:x/v1", "model": "m"}, "http://host:x/v1"),
        ({"url": "http://host/v1", "model": "m", "key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE of --key-env is em"),
    ],
)
def test_invalid_endpoint_is_a_config_error(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Endpoint(**options)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_statuses_are_retried(stage: Stage, status: int) -> None:
    scenes = iter([stage.scene({}, status), stage.scene({}, status, {"retry-after": "0"}), stage.said("Yes")])
    stage.play = lambda _: next(scenes)
    assert talk(stage.endpoint()).content == "Yes"
    assert len(stage.heard) == 3


def test_retry_after_is_honoured(stage: Stage) -> None:
    scenes = iter([stage.scene({}, 429, {"retry-after": "0.3"}), stage.said("Yes")])
    stage.play = lambda _: next(scenes)
    began = time.monotonic()
    talk(stage.endpoint())
    assert time.monotonic() - began >= 0.3


def test_long_retry_after_is_not_waited_for(stage: Stage) -> None:
    stage.play = lambda _: stage.scene({"error": "busy"}, 429, {"retry-after": "86400"})
    with pytest.raises(EngineFailure, match=r"429 .*busy"):
        talk(stage.endpoint())
    assert len(stage.heard) == 1


@pytest.mark.parametrize(
    ("content", "status", "sentence", "asked"),
    [
        ({"error": {"message": "no model wise"}}, 404, "404 .*no model wise", 1),
        ({"detail": "down"}, 500, "500 .*down", None),
        (b"<html>", 200, "JSON", None),
        ({"choices": []}, 200, "no message", 1),
        ({"choices": [{"message": None}]}, 200, "expected an OpenAI-compatible server", 1),
        ([1], 200, "no message", 1),
    ],
)
def test_failures_are_engine_failures(
    stage: Stage, content: Any, status: int, sentence: str, asked: int | None
) -> None:
    stage.play = lambda _: stage.scene(content, status)
    with pytest.raises(EngineFailure, match=sentence):
        talk(stage.endpoint(patience=0.3))
    assert len(stage.heard) == asked or (asked is None and len(stage.heard) > 1)


def test_number_of_attempts_is_not_limited(stage: Stage) -> None:
    stage.play = lambda _: stage.said("Oslo") if len(stage.heard) > 7 else stage.scene({"detail": "starting"}, 503)
    assert talk(stage.endpoint()).content == "Oslo"


def test_full_context_is_its_own_error(stage: Stage) -> None:
    stage.play = lambda _: stage.scene({"error": {"message": "This model's maximum context length is 8 tokens"}}, 400)
    with pytest.raises(ContextFull):
        talk(stage.endpoint())


def test_unreachable_and_slow_servers(stage: Stage) -> None:
    with pytest.raises(EngineFailure, match=r"127\.0\.0\.1:9/v1/chat/completions"):
        talk(Endpoint("http://127.0.0.1:9/v1", "wise", patience=0.0))

    def late(_: Any) -> Any:
        time.sleep(0.3)
        return stage.said("late")

    stage.play = late
    with pytest.raises(EngineFailure, match=r"within 0\.05 s"):
        talk(stage.endpoint(timeout=0.05, patience=0.0))


def test_content_parts_reasoning_and_missing_counts(stage: Stage) -> None:
    pieces = [{"type": "text", "text": "Os"}, {"type": "text", "text": "lo"}]
    message = {"content": pieces, "reasoning_content": "Hm."}
    stage.play = lambda _: stage.scene({"choices": [{"message": message, "finish_reason": "length"}]})
    assert talk(stage.endpoint()) == Reply("Oslo", "Hm.", None, 0, False, "", 0, 0)


def test_served_model_reports_stable_fields(stage: Stage) -> None:
    assert served_model(stage.endpoint()) == {"owned_by": "us"}
    stage.models = stage.scene({}, 404)
    assert served_model(stage.endpoint()) is None


@pytest.mark.parametrize(
    ("model", "models", "status", "sentence"),
    [
        (
            "unwise",
            {"data": [{"id": "wise"}, {"id": "other"}]},
            200,
            "'unwise'.*--model.*wise, other",
        ),
        ("", {"data": [{"id": "wise"}]}, 200, "--model.*wise"),
        ("wise", {"error": "who?"}, 401, r"401 .*who\?.*OPENAI_API_KEY"),
    ],
)
def test_served_model_errors(stage: Stage, model: str, models: Any, status: int, sentence: str) -> None:
    stage.models = stage.scene(models, status)
    with pytest.raises(InputError, match=sentence):
        served_model(stage.endpoint(model))
