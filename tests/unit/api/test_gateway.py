"""The gateway for a trainer of one's own: endpoints, trajectories, rewards and new weights."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAI
from transformers import AutoModelForCausalLM

import sleuth
from sleuth.config.recipe import resolve_policy
from sleuth.errors import FunctionFailed
from sleuth.records import StopReason

SETTINGS = {"agent": {"context_tokens": 128, "turn_tokens": 8}}
PROMPT = "Question: Who founded the Amber Mirror?\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sleuth.Gateway]:
    documents = [{"id": "mirror", "title": "Amber Mirror", "text": "It was founded by Kellan Whitlock."}]
    index = sleuth.Index.build(documents, tmp_path_factory.mktemp("documents") / "index")
    with sleuth.Gateway("quickstart", index, settings=SETTINGS) as opened:
        yield opened


def complete(endpoint: sleuth.Endpoint, prompt: str = PROMPT) -> str:
    client = OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)
    return client.completions.create(model=endpoint.model, prompt=prompt).choices[0].text


def test_calls_become_segments_with_logprobs(gateway: sleuth.Gateway) -> None:
    rollout = gateway.open("Who founded the Amber Mirror?", seed=3)
    first = complete(rollout.endpoint)
    complete(rollout.endpoint, PROMPT + first + "\nSo: ")
    complete(rollout.endpoint, "Another context")
    trajectory = rollout.finish(reward=0.5)
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.reward == sleuth.Reward(0.5)
    assert len(trajectory.turns) == 3
    assert len(trajectory.segments) == 2
    for segment in trajectory.segments:
        assert len(segment.ids) == len(segment.sampled)
        assert sum(segment.sampled) == len(segment.logprobs) == len(segment.versions) > 0
        assert all(logprob <= 0 for logprob in segment.logprobs)
    again = gateway.open("Who founded the Amber Mirror?", seed=3)
    assert complete(again.endpoint) == first
    assert again.finish().reward is None


def test_many_attempts_at_once_in_async_code(gateway: sleuth.Gateway) -> None:
    async def attempt(seed: int) -> tuple[int, ...]:
        rollout = await gateway.open_async("Who?", seed=seed)
        async with AsyncOpenAI(base_url=rollout.endpoint.base_url, api_key=rollout.endpoint.api_key) as client:
            await client.completions.create(model=rollout.endpoint.model, prompt=PROMPT)
        found = await rollout.endpoint.search_async("Amber Mirror")
        assert found[0]["id"] == "mirror#0"
        return (await rollout.finish_async(reward=float(seed))).ids

    async def together() -> list[tuple[int, ...]]:
        return await asyncio.gather(*map(attempt, range(8)))

    assert len(set(asyncio.run(together()))) > 1


def test_tokens_carry_the_version_of_published_weights(gateway: sleuth.Gateway) -> None:
    weights = AutoModelForCausalLM.from_pretrained(resolve_policy("quickstart")).state_dict()
    version = gateway.publish(weights)
    rollout = gateway.open("Who?")
    complete(rollout.endpoint)
    assert set(rollout.finish().versions) == {version}
    assert gateway.publish(weights) == version + 1


def test_an_ended_or_unused_attempt_is_unusable(gateway: sleuth.Gateway) -> None:
    unused = gateway.open("Who?")
    assert unused.finish().stop is StopReason.FUNCTION_FAILED
    with pytest.raises(APIStatusError) as refused:
        complete(unused.endpoint)
    assert refused.value.status_code == 410
    failed = gateway.open("Who?")
    complete(failed.endpoint)
    with pytest.raises(FunctionFailed, match="nan"):
        failed.finish(reward=float("nan"))
    trajectory = failed.finish(failure="the browser crashed")
    assert (trajectory.stop, trajectory.failure) == (StopReason.FUNCTION_FAILED, "the browser crashed")


def test_a_posted_reward_is_not_replaced(gateway: sleuth.Gateway) -> None:
    rollout = gateway.open("Who?")
    complete(rollout.endpoint)
    headers = {"x-api-key": rollout.endpoint.api_key}
    httpx.post(rollout.endpoint.reward_url, json={"reward": 0.5}, headers=headers).raise_for_status()
    with pytest.raises(FunctionFailed, match="posted one"):
        rollout.finish(reward=1.0)
    assert rollout.finish().reward == sleuth.Reward(0.5)


def test_an_attempt_that_has_ended_cannot_be_finished() -> None:
    with sleuth.Gateway("quickstart", settings=SETTINGS) as gateway:
        finished, lost = gateway.open("Who?"), gateway.open("Who?")
        finished.finish()
        with pytest.raises(RuntimeError, match="finished before"):
            finished.finish(reward=1.0)
    with pytest.raises(RuntimeError, match="gateway was closed"):
        lost.finish(reward=1.0)


def test_settings_of_the_gateway_and_its_helper_apply() -> None:
    helper = {"url": "http://127.0.0.1:1/v1", "model": "judge"}
    with sleuth.Gateway("quickstart", settings={**SETTINGS, "gateway": {"host": "::1", "helper": helper}}) as gateway:
        assert gateway.url.startswith("http://[::1]:")
        rollout = gateway.open("Who?")
        client = OpenAI(base_url=rollout.endpoint.base_url, api_key=rollout.endpoint.api_key, max_retries=0)
        assert [model.id for model in client.models.list()] == ["policy", "judge"]
        with pytest.raises(APIStatusError, match="helper"):
            client.completions.create(model="judge", prompt=PROMPT)


def test_a_gateway_needs_no_index_and_a_closed_one_is_gone(tmp_path: Path) -> None:
    with sleuth.Gateway("quickstart", settings=SETTINGS) as gateway:
        rollout = gateway.open("Who?")
        assert complete(rollout.endpoint) is not None
        assert len(rollout.finish().segments) == 1
    with pytest.raises(APIConnectionError):
        complete(rollout.endpoint)
