"""A search agent in pydantic-ai: dependencies carry the endpoint to the tool.

Install `sleuth` and `pydantic-ai-slim[openai]`. In this folder:
`sleuth train quickstart-tools --set agent.run=import:pydantic_ai_agent.run`
"""

from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import sleuth

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="-")  # shared: a new client takes 50 ms
agent = Agent(deps_type=sleuth.Endpoint, instructions="Answer the question. Search for the facts that you need.")


@agent.tool
async def search(context: RunContext[sleuth.Endpoint], query: str) -> str:
    """Search the encyclopedia."""
    return "\n".join(row["contents"] for row in await context.deps.search_async(query))


async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> float | None:
    client = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    model = OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client))
    try:
        await agent.run(task.question.question, model=model, deps=llm)
    except UnexpectedModelBehavior:  # for example two empty answers in a row
        return 0.0
    return None  # the output is the answer; the run's rubric scores it
