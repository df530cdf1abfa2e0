"""The official client of OpenAI against a gateway: an attempt with a function call is one segment, through any API."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.rollout import Rollout
from sleuth.gateway.server import Gateway
from sleuth.records import StopReason

FUNCTION = {
    "name": "search",
    "description": "Finds.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
CALL = 'Let me see.\n<tool_call>\n{"name": "search", "arguments": {"query": "Oslo"}}\n</tool_call>'
ASKED = {"role": "user", "content": "Where?"}


async def chat(client: Any, *, stream: bool) -> str:
    messages: list[Any] = [ASKED]
    options = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}

    async def ask() -> Any:
        if not stream:
            return (await client.chat.completions.create(**options)).choices[0].message
        async with client.chat.completions.stream(**options) as chunks:
            return (await chunks.get_final_completion()).choices[0].message

    message = await ask()
    messages += [message.to_dict(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "In Norway."}]
    return str((await ask()).content)


async def responses(client: Any, *, stream: bool) -> str:
    items: list[Any] = [ASKED]
    options = {
        "model": "policy",
        "input": items,
        "instructions": "Be short.",
        "tools": [{"type": "function", **FUNCTION}],
    }

    async def ask() -> Any:
        if not stream:
            return await client.responses.create(**options)
        async with client.responses.stream(**options) as events:
            return await events.get_final_response()

    response = await ask()
    call = response.output[-1]
    items += [*response.output, {"type": "function_call_output", "call_id": call.call_id, "output": "In Norway."}]
    return str((await ask()).output_text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("attempt", [chat, responses])
def test_an_attempt_is_one_segment(make_rollout: Callable[..., Rollout], attempt: Any, stream: bool) -> None:
    rollout = make_rollout(CALL, "It is Oslo.")

    async def run(gateway: Gateway) -> str:
        endpoint: Endpoint = gateway.open(rollout)
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as client:
            answer: str = await attempt(client, stream=stream)
            return answer

    with Gateway() as gateway:
        assert asyncio.run(run(gateway)) == "It is Oslo."
    assert (rollout.counts.calls, rollout.counts.rewritten, rollout.forks) == (2, 0, 0)
    assert rollout.finish(StopReason.ANSWERED).answer == "It is Oslo."
