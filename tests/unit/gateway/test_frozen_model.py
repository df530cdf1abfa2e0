"""Requests for a frozen model are forwarded to its server, counted, and never trained."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from threading import Event
from typing import Any

import httpx
import pytest

from sleuth.config.gateway import HelperConfig
from sleuth.errors import ConfigError
from sleuth.gateway.frozen_model import FrozenModel, reply_text
from sleuth.gateway.rollout import Rollout
from sleuth.gateway.server import Gateway, GatewayLimits
from sleuth.records import StopReason, Trajectory

Post = Callable[..., Awaitable[httpx.Response]]
MESSAGES = [{"role": "user", "content": "Which?"}]


def play(
    rollout: Rollout,
    url: str,
    story: Callable[[Post], Awaitable[None]],
    gateways: list[Gateway] | None = None,
    **options: Any,
) -> Trajectory:
    async def run(gateway: Gateway) -> Trajectory:
        endpoint = gateway.open(rollout)
        async with httpx.AsyncClient(headers={"x-api-key": endpoint.api_key}) as client:

            async def post(**body: Any) -> httpx.Response:
                return await client.post(f"{endpoint.base_url}/chat/completions", json={"messages": MESSAGES, **body})

            await story(post)
        await asyncio.sleep(0.1)  # the reply is recorded after it was sent
        return rollout.finish(StopReason.ANSWERED)

    frozen = FrozenModel(url, "wise", "secret", 5.0)
    with Gateway(helper=frozen, **options) as gateway:
        if gateways is not None:
            gateways.append(gateway)
        return asyncio.run(run(gateway))


def test_whole_reply_is_forwarded_and_recorded(make_rollout: Callable[..., Rollout], stage: Any) -> None:
    async def story(post: Post) -> None:
        await post(model="policy")
        reply = await post(model="wise", anything="else")
        assert reply.json()["choices"][0]["message"]["content"] == "Bergen"
        models = await post(model="other")
        assert "wise" in models.json()["error"]["message"]

    stage.play = lambda _: stage.said("Bergen")
    found = play(make_rollout("Oslo"), stage.url, story)
    assert stage.heard == [{"messages": MESSAGES, "model": "wise", "anything": "else"}]
    assert stage.keys == ["Bearer secret"]
    assert [(turn.text, turn.segment) for turn in found.turns] == [("Oslo", 0), ("Bergen", None)]
    assert len(found.segments) == 1


def test_stream_is_forwarded_and_recorded(make_rollout: Callable[..., Rollout], stage: Any) -> None:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("Ber", "gen")]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    async def story(post: Post) -> None:
        reply = await post(model="wise", stream=True)
        assert reply.text == events

    stage.play = lambda _: stage.scene(events.encode(), headers={"content-type": "text/event-stream"})
    assert [turn.text for turn in play(make_rollout(), stage.url, story).turns] == ["Bergen"]


def test_failures_of_the_server(make_rollout: Callable[..., Rollout], stage: Any) -> None:
    async def refused(post: Post) -> None:
        assert (await post(model="wise")).status_code == 429

    async def unreachable(post: Post) -> None:
        reply = await post(model="wise")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "helper_unavailable")
        assert "gateway.helper.url" in reply.json()["error"]["message"]

    stage.play = lambda _: stage.scene({"error": {"message": "slow down"}}, 429)
    assert play(make_rollout(), stage.url, refused).turns == ()
    assert play(make_rollout(), "http://127.0.0.1:9/v1", unreachable).turns == ()


@pytest.fixture
def held(stage: Any) -> Iterator[Event]:
    """Makes the helper wait before it answers, until this is set."""
    released = Event()

    def play(_: object) -> Any:
        assert released.wait(10)
        return stage.said("Bergen")

    stage.play = play
    yield released
    released.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (the state of another thread)
            await asyncio.sleep(0.01)


def test_open_requests_are_bounded_and_all_replies_are_recorded(
    make_rollout: Callable[..., Rollout], stage: Any, held: Event
) -> None:
    async def story(post: Post) -> None:
        calls = [asyncio.ensure_future(post(model="wise")) for _ in range(2)]
        await until(lambda: len(stage.heard) == 2)
        for model in ("wise", "policy"):
            assert (await post(model=model)).status_code == 429
        held.set()
        assert [(await call).status_code for call in calls] == [200, 200]
        assert (await post(model="wise")).status_code == 200

    found = play(make_rollout(), stage.url, story, limits=GatewayLimits(calls=2))
    assert [turn.text for turn in found.turns] == ["Bergen"] * 3


def test_requests_in_flight_end_with_their_rollout(
    make_rollout: Callable[..., Rollout], stage: Any, held: Event
) -> None:
    async def story(post: Post) -> None:
        call = asyncio.ensure_future(post(model="wise"))
        await until(lambda: len(stage.heard) == 1)
        gateways[0].close(rollout.id)
        reply = await asyncio.wait_for(call, 5)
        assert (reply.status_code, reply.json()["error"]["code"]) == (410, "rollout_closed")

    rollout, gateways = make_rollout(), list[Gateway]()
    assert play(rollout, stage.url, story, gateways).turns == ()


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"choices": [{"text": "a"}]}, "application/json", "a"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "tool_use"}]}, "application/json", "a"),
        ({"output": [{"type": "reasoning"}, {"content": [{"text": "a"}]}]}, "application/json", "a"),
        ([], "application/json", ""),
        ({"type": "content_block_delta", "delta": {"text": "a"}}, "text/event-stream", "a"),
        ({"type": "response.output_text.delta", "delta": "a"}, "text/event-stream", "a"),
        ({"choices": [{"text": "a"}]}, "text/event-stream; charset=utf-8", "a"),
    ],
)
def test_text_of_each_api(body: Any, kind: str, text: str) -> None:
    encoded = json.dumps(body).encode()
    assert reply_text(b"data: " + encoded + b"\n\n" if "event-stream" in kind else encoded, kind) == text


def test_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WISE_KEY", raising=False)
    with pytest.raises(ConfigError, match="WISE_KEY"):
        FrozenModel.of(HelperConfig(url="http://x/v1", model="wise", key_env="WISE_KEY"), 5.0)
    assert FrozenModel.of(HelperConfig(), 5.0) is None
