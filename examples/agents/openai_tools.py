"""A search agent in plain `openai`: a loop over chat completions with one function.

Install `sleuth` and `openai`. In this folder: `sleuth train quickstart-tools --set agent.run=import:openai_tools.run`
"""

import json
from typing import Any

from openai import AsyncOpenAI

import sleuth

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="-")  # shared: a new client takes 50 ms
SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the encyclopedia.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Answer the question. Search for the facts that you need."},
        {"role": "user", "content": task.question.question},
    ]
    client = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    while True:
        reply = await client.chat.completions.create(model=llm.model, messages=messages, tools=[SEARCH])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return  # the content is the answer; the run's rubric scores it
        for call in message.tool_calls:
            result = await search(llm, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def search(llm: sleuth.Endpoint, arguments: str) -> str:
    try:
        query = json.loads(arguments)["query"]
    except (ValueError, LookupError, TypeError) as error:
        return f"Error: {error}"
    return "\n".join(row["contents"] for row in await llm.search_async(str(query)))
