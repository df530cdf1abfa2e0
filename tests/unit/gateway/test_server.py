"""The gateway over HTTP: calls, streams, rewards, searches, keys, limits, and rollouts that have ended."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from sleuth.agent.tools import Toolbox
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.rollout import Rollout
from sleuth.gateway.server import Gateway, GatewayLimits
from sleuth.model.tokens import Tokens
from sleuth.records import Score, StopReason

Make = Callable[..., Rollout]
ASK = {"model": "policy", "messages": [{"role": "user", "content": "Where is it?"}]}
CHAT = "/chat/completions"
LIMITS = GatewayLimits(body=100_000, calls=3, call_seconds=5.0)


class HeldEngine(ScriptedEngine):
    """Waits before each reply until it is released; `cancelled` counts the calls that were given up."""

    def __init__(self, line: Sequence[int]) -> None:
        super().__init__(lambda _: line)
        self.released, self.started, self.cancelled = asyncio.Event(), 0, 0

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        self.started += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().generate(ids, sampling, session, on_tokens)


class Client:
    """Sends requests to one rollout."""

    def __init__(self, http: httpx.AsyncClient, endpoint: Endpoint) -> None:
        self.http, self.endpoint = http, endpoint
        self.headers = {"authorization": f"Bearer {endpoint.api_key}"}

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        base = self.endpoint.rollout_url if path in ("/reward", "/retrieve") else self.endpoint.base_url
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **self.headers, **options.pop("headers", {})}
        return await self.http.post(f"{base}{path}", content=content, headers=headers, **options)

    async def get(self, url: str) -> httpx.Response:
        return await self.http.get(url, headers=self.headers)


Story = Callable[[Client, Gateway], Awaitable[None]]


def play(rollout: Rollout, story: Story, **options: Any) -> None:
    """Run a story in the event loop of the engine, against a gateway in its own thread."""

    async def run(gateway: Gateway) -> None:
        endpoint = gateway.open(rollout)
        async with httpx.AsyncClient(timeout=10) as http:
            await story(Client(http, endpoint), gateway)

    with Gateway(**{"limits": LIMITS, **options}) as gateway:
        asyncio.run(run(gateway))


def problem(reply: httpx.Response) -> tuple[int, str | None]:
    error = reply.json()["error"]
    assert error["message"]
    assert error["type"]
    return reply.status_code, error["code"]


def test_chat_completion_is_recorded(make_rollout: Make) -> None:
    rollout = make_rollout("Oslo")

    async def story(client: Client, gateway: Gateway) -> None:
        reply = await client.post(CHAT, {**ASK, "logprobs": True, "return_token_ids": True})
        assert reply.status_code == 200
        (choice,) = reply.json()["choices"]
        assert choice["message"]["content"] == "Oslo"
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 5
        state = (await client.get(client.endpoint.rollout_url)).json()
        assert (state["state"], state["calls"], len(state["segments"])) == ("open", 1, 1)
        models = (await client.get(f"{client.endpoint.base_url}/models")).json()
        assert [model["id"] for model in models["data"]] == ["policy"]
        health = (await client.get(f"{gateway.url}/health")).json()
        assert health == {"status": "ok", "rollouts": 1}

    play(rollout, story)
    assert rollout.finish(StopReason.ANSWERED).answer == "Oslo"


def test_streamed_chunks_add_up(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        reply = await client.post(CHAT, {**ASK, "stream": True})
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == "The city of Oslo"
        assert lines[-1] == "[DONE]"

    play(make_rollout("The city of Oslo"), story)


def test_requests_need_a_known_rollout_and_its_key(make_rollout: Make) -> None:
    async def story(client: Client, gateway: Gateway) -> None:
        key = client.endpoint.api_key
        for headers, expected in (
            ({"authorization": "Bearer wrong"}, (401, "invalid_api_key")),
            ({"authorization": ""}, (401, "invalid_api_key")),
            ({"authorization": f"Basic {key}"}, (401, "invalid_api_key")),
        ):
            assert problem(await client.post(CHAT, ASK, headers=headers)) == expected
        other = await client.http.post(f"{gateway.url}/rollout/unknown/v1{CHAT}", json=ASK, headers=client.headers)
        assert problem(other) == (404, "rollout_not_found")
        nowhere = await client.http.get(f"{gateway.url}/v1/models")
        assert nowhere.status_code == 404
        assert "/rollout/" in nowhere.json()["error"]["message"]
        by_header = await client.post(CHAT, ASK, headers={"authorization": "", "x-api-key": key})
        assert by_header.status_code == 200

    play(make_rollout("Oslo"), story)


def test_unknown_model_is_told_to_use_policy(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        reply = await client.post(CHAT, {**ASK, "model": "gpt-4o"})
        assert problem(reply) == (404, "model_not_found")
        assert "policy" in reply.json()["error"]["message"]
        role = await client.post(CHAT, {**ASK, "model": "policy/writer"})
        assert role.status_code == 200

    play(rollout := make_rollout("Oslo"), story)
    assert rollout.finish(StopReason.ANSWERED).segments[0].role == "writer"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"x" * 200_000, 413, None),
        (b"{", 400, "invalid_json"),
        ({**ASK, "n": 0}, 400, None),
        ({**ASK, "tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, None),
        (
            {**ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "text"}}}]},
            400,
            "invalid_function_parameters",
        ),
        ({"model": "policy", "messages": []}, 400, None),
        ({**ASK, "messages": [{"role": "user", "content": "long " * 2000}]}, 400, "context_length_exceeded"),
        (
            {**ASK, "stream": True, "messages": [{"role": "user", "content": "a" * 9000}]},
            400,
            "context_length_exceeded",
        ),
    ],
)
def test_bad_call_is_refused_and_nothing_is_lost(make_rollout: Make, body: Any, status: int, code: str | None) -> None:
    async def story(client: Client, _: Gateway) -> None:
        refused = await client.post(CHAT, body)
        assert problem(refused) == (status, code)
        assert (await client.post(CHAT, ASK)).status_code == 200

    play(rollout := make_rollout("Oslo"), story)
    assert rollout.finish(StopReason.ANSWERED).answer == "Oslo"


def test_body_of_ten_megabytes_gets_413_by_default(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        assert problem(await client.post(CHAT, b" " * 10_000_000)) == (413, None)

    play(make_rollout("Oslo"), story, limits=GatewayLimits())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"reward": 1}, Score(1.0)),
        ({"reward": 0.5, "turns": [0.25], "parts": {"style": 2.0}}, Score(0.5, {"style": 2.0}, (0.25,))),
        ({"event_type": "reward", "data": {"value": 1}}, Score(1.0)),
    ],
)
def test_reward_is_posted_once(make_rollout: Make, body: Any, expected: Score) -> None:
    async def story(client: Client, _: Gateway) -> None:
        await client.post(CHAT, ASK)
        assert (await client.post("/reward", body)).json() == {"reward": expected.episode_return}
        assert problem(await client.post("/reward", body)) == (409, "reward_exists")

    play(rollout := make_rollout("Oslo"), story)
    assert rollout.finish(StopReason.ANSWERED).reward == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"reward": 1e999}',
        b'{"reward": "1"}',
        b'{"reward": true}',
        b'{"reward": null}',
        b"{}",
        b"1",
        b'{"reward": 1, "turns": [NaN]}',
        b'{"reward": 1, "turns": [1, 2, 3]}',
        b'{"reward": 1, "parts": {"a": "b"}}',
        b'{"event_type": "other", "data": {"value": 1}}',
        b'{"event_type": "reward", "data": {"value": "x"}}',
    ],
)
def test_bad_reward_is_refused(make_rollout: Make, body: bytes) -> None:
    async def story(client: Client, _: Gateway) -> None:
        await client.post(CHAT, ASK)
        assert problem(await client.post("/reward", body))[0] == 400

    play(rollout := make_rollout("Oslo"), story)
    assert rollout.reward is None


def test_requests_after_the_end_get_410(make_rollout: Make) -> None:
    async def story(client: Client, gateway: Gateway) -> None:
        gateway.close(rollout.id)
        for path, body in ((CHAT, ASK), ("/reward", {"reward": 1}), ("/retrieve", {"queries": ["x"]})):
            assert problem(await client.post(path, body)) == (410, "rollout_closed")

    rollout = make_rollout("Oslo")
    play(rollout, story)
    assert rollout.reward is None


def test_calls_in_flight_end_with_their_rollout(make_rollout: Make, chat_tokens: Tokens) -> None:
    async def story(client: Client, gateway: Gateway) -> None:
        calls = [asyncio.create_task(client.post(CHAT, {**ASK, "stream": stream})) for stream in (False, True)]
        while engine.started < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gateway.close(rollout.id)
        assert {problem(await call) for call in calls} == {(410, "rollout_closed")}
        assert engine.cancelled == 2

    engine = HeldEngine(chat_tokens.encode("Oslo"))
    rollout = make_rollout(engine=engine)
    play(rollout, story)


def test_client_that_disconnects_cancels_its_generation(make_rollout: Make, chat_tokens: Tokens) -> None:
    async def story(client: Client, _: Gateway) -> None:
        for stream in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                await client.post(CHAT, {**ASK, "stream": stream}, timeout=0.3)
        async with asyncio.timeout(5):
            while engine.cancelled < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    engine = HeldEngine(chat_tokens.encode("Oslo"))
    play(make_rollout(engine=engine), story)
    assert engine.cancelled == 2


def test_slow_call_gets_504_and_open_requests_are_bounded(make_rollout: Make, chat_tokens: Tokens) -> None:
    async def story(client: Client, _: Gateway) -> None:
        replies = await asyncio.gather(*(client.post(CHAT, ASK) for _ in range(4)))
        assert sorted(map(problem, replies)) == [(429, "rate_limit_exceeded"), *[(504, "timeout")] * 3]
        assert problem(await client.post(CHAT, {**ASK, "stream": True})) == (504, "timeout")

    engine = HeldEngine(chat_tokens.encode("Oslo"))
    play(make_rollout(engine=engine), story, limits=GatewayLimits(calls=3, call_seconds=0.3))


class TalkativeEngine(ScriptedEngine):
    """Samples a token again and again, for five seconds in all."""

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        completion = await super().generate(ids, sampling, session)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if on_tokens is not None:
                on_tokens(completion.ids)
        return completion


def test_client_that_leaves_a_stream_is_no_error_of_the_server(
    make_rollout: Make, chat_tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(client: Client, _: Gateway) -> None:
        url, headers = f"{client.endpoint.base_url}{CHAT}", client.headers
        async with client.http.stream("POST", url, json={**ASK, "stream": True}, headers=headers) as reply:
            async for _line in reply.aiter_lines():
                break
        async with asyncio.timeout(5):
            while rollout._running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    rollout = make_rollout(engine=TalkativeEngine(lambda _: chat_tokens.encode("Oslo")))
    play(rollout, story)
    assert rollout.times.wait > 0
    assert [record for record in caplog.records if record.exc_info] == []


def test_stream_that_is_never_silent_ends_at_its_deadline(make_rollout: Make, chat_tokens: Tokens) -> None:
    async def story(client: Client, _: Gateway) -> None:
        started = time.monotonic()
        reply = await client.post(CHAT, {**ASK, "stream": True})
        assert 0.5 <= time.monotonic() - started < 3
        *content, last = (json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {"))
        assert "Oslo" in "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in content)
        assert last["error"]["code"] == "timeout"

    engine = TalkativeEngine(lambda _: chat_tokens.encode("Oslo"))
    play(make_rollout(engine=engine), story, limits=GatewayLimits(call_seconds=0.5))


def test_requests_are_held_while_the_engines_loop_does_not_run(make_rollout: Make) -> None:
    rollout = make_rollout("Oslo")
    replies: list[httpx.Response] = []

    async def opened() -> Endpoint:
        return gateway.open(rollout)

    async def served() -> None:
        while not replies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def ask(endpoint: Endpoint) -> None:
        headers = {"x-api-key": endpoint.api_key}
        replies.append(httpx.post(f"{endpoint.base_url}{CHAT}", json=ASK, headers=headers, timeout=10))

    with Gateway() as gateway, asyncio.Runner() as runner:
        endpoint = runner.run(opened())
        client = threading.Thread(target=ask, args=(endpoint,))
        client.start()
        time.sleep(0.5)  # the trainer updates the weights
        assert httpx.get(f"{gateway.url}/health").json()["rollouts"] == 1
        assert not replies
        runner.run(served())
        client.join()
    assert replies[0].status_code == 200


def test_engine_failure_is_an_error_that_clients_do_not_retry(make_rollout: Make) -> None:
    def fail(_: Sequence[int]) -> Sequence[int]:
        raise EngineFailure("out of memory")

    async def story(client: Client, _: Gateway) -> None:
        reply = await client.post(CHAT, ASK)
        assert problem(reply) == (500, "engine_failed")
        assert reply.headers["x-should-retry"] == "false"

    play(rollout := make_rollout(engine=ScriptedEngine(fail)), story)
    assert rollout.failure == "out of memory"


def test_search_is_recorded_in_the_rollout(make_rollout: Make, tools: Toolbox) -> None:
    async def story(client: Client, _: Gateway) -> None:
        await client.post(CHAT, ASK)
        found = await client.post("/retrieve", {"queries": ["Norway", "Oslo"], "topk": 1, "return_scores": True})
        assert [[hit["document"]["id"] for hit in hits] for hits in found.json()["result"]] == [["oslo"], ["oslo"]]
        bare = await client.post("/retrieve", {"queries": ["Norway"]})
        assert bare.json()["result"][0][0]["contents"].startswith('"Oslo"')
        assert [row["score"] for row in await client.endpoint.search_async("Norway")] == [0.5]
        assert problem(await client.post("/retrieve", {"queries": "Norway"}))[0] == 422
        assert problem(await client.post("/retrieve", {"queries": ["x"] * 101}))[0] == 422

    play(rollout := make_rollout("Oslo"), story, tools=tools)
    assert rollout.counts.searches == 4
    assert len(rollout.turns[0].hits) == 4
    assert tools.searches.calls == 3


def test_failed_search_is_told_and_kept(make_rollout: Make, tools: Toolbox) -> None:
    rollout = make_rollout("Oslo")

    async def story(client: Client, gateway: Gateway) -> None:
        reply = await client.post("/retrieve", {"queries": ["lost"]})
        assert reply.status_code == 503
        assert "it is lost" in reply.json()["error"]["message"]
        assert "it is lost" in str(gateway.close(rollout.id).search_failure)

    play(rollout, story, tools=tools)
    assert tools.searches.failures == 1


def test_run_without_an_index_says_so(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        assert problem(await client.post("/retrieve", {"queries": ["x"]})) == (404, "no_index")

    play(make_rollout("Oslo"), story)


def test_pages_of_other_sites_are_refused(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        assert problem(await client.post(CHAT, ASK, headers={"host": "evil.example"}))[0] == 421
        assert problem(await client.post(CHAT, ASK, headers={"origin": "http://evil.example"}))[0] == 403

    play(make_rollout("Oslo"), story)


def test_reward_posted_by_curl_is_accepted(make_rollout: Make) -> None:
    async def story(client: Client, _: Gateway) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
        assert (await client.post("/reward", {"reward": 0.5}, headers=headers)).status_code == 200

    rollout = make_rollout("Oslo")
    play(rollout, story)
    assert rollout.reward == Score(0.5)
