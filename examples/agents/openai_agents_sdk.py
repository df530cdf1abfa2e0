"""A search agent in the OpenAI Agents SDK, which calls the model through the Responses API.

Install `sleuth` and `openai-agents`. In this folder:
`sleuth train quickstart-tools --set agent.run=import:openai_agents_sdk.run`
"""

from agents import Agent, ModelBehaviorError, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import sleuth

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="-")  # shared: a new client takes 50 ms
set_tracing_disabled(True)  # traces would go to api.openai.com


async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> float | None:
    @function_tool
    async def search(query: str) -> str:
        """Search the encyclopedia."""
        return "\n".join(row["contents"] for row in await llm.search_async(query))

    client = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    agent = Agent(
        name="searcher",
        instructions="Answer the question. Search for the facts that you need.",
        model=OpenAIResponsesModel(model=llm.model, openai_client=client),
        tools=[search],
    )
    try:
        await Runner.run(agent, task.question.question)
    except ModelBehaviorError:  # for example a call of a function that does not exist
        return 0.0
    return None  # the final output is the answer; the run's rubric scores it
