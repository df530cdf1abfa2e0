"""A search agent in LangGraph: the prebuilt ReAct graph with one tool.

Install `sleuth`, `langchain`, `langgraph` and `langchain-openai`. In this folder:
`sleuth train quickstart-tools --set agent.run=import:langgraph_agent.run`
"""

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

import sleuth

# Shared: a new client takes 50 ms.
HTTP = {"http_async_client": DefaultAsyncHttpxClient(), "http_client": DefaultHttpxClient()}


async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> None:
    @tool
    async def search(query: str) -> str:
        """Search the encyclopedia."""
        return "\n".join(row["contents"] for row in await llm.search_async(query))

    agent = create_agent(
        ChatOpenAI(model=llm.model, base_url=llm.base_url, api_key=llm.api_key, **HTTP),
        tools=[search],
        system_prompt="Answer the question. Search for the facts that you need.",
    )
    await agent.ainvoke({"messages": [{"role": "user", "content": task.question.question}]})
