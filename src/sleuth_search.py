"""Sleuth's search as an environment of verifiers, under the id sleuth-search: questions, a search tool, a chat.

`python -m sleuth_search` is the server of the tool, which verifiers starts.
"""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from sleuth.corpus import questions
from sleuth.errors import SearchUnavailable
from sleuth.retrieval.backends import open_backend
from sleuth.reward.answers import exact_match

__all__ = ["SearchEnv", "SearchHarness", "SearchTaskset"]


class SearchData(vf.TaskData):
    """A question with its expected answers."""

    answers: list[str]


class SearchTask(vf.Task[SearchData]):
    """A question that is answered with the search; rewarded by exact match."""

    @vf.reward
    async def exact_match(self, trace: vf.Trace) -> float:
        return exact_match(trace.last_reply, self.data.answers)


class SearchToolsetConfig(vf.SharedToolsetConfig):
    index: str = ""
    """What to search: an index folder, the address of `sleuth serve`, or web:PROVIDER."""
    k: int = 3
    """Passages per search."""


class SearchToolset(vf.Toolset[SearchToolsetConfig, vf.State]):
    """Sleuth's search as a tool."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        self._retriever = open_backend(self.config.index)

    @vf.tool
    async def search(self, query: str) -> str:
        """Search the corpus; returns the best passages."""
        (hits,) = await self._retriever.search([query], self.config.k)
        if isinstance(hits, SearchUnavailable):
            raise hits
        return "\n".join(hit.passage.contents for hit in hits) or "Nothing was found."


class SearchHarness(vf.Harness[vf.HarnessConfig]):
    """A chat with tools that runs in this process: no program is started, and none is installed."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,  # noqa: ARG002  the interception server records the calls
        runtime: vf.Runtime,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_text_prompt(data)
        texts = (("system", system), ("user", prompt))
        messages: list[Any] = [{"role": role, "content": text} for role, text in texts if text]
        async with AsyncExitStack() as stack:
            config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            tools, dispatch, servers = await connect_mcp(config, stack)
            client = await stack.enter_async_context(AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0))
            while True:
                reply = await client.chat.completions.create(model=ctx.model, messages=messages, tools=tools)
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return vf.ProgramResult(0, "", "")
                for call in message.model_dump()["tool_calls"]:
                    name, arguments = call["function"]["name"], _arguments(call["function"]["arguments"])
                    result: Any = f"Error: {name} cannot be called with these arguments."
                    if name in dispatch and arguments is not None:
                        result = await call_mcp(servers, dispatch, name, arguments)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call, or None if they are not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class SearchConfig(vf.TasksetConfig):
    """Settings of Sleuth's search environment."""

    questions: Path = Path()
    """File with questions and golden answers, in any format that Sleuth reads."""
    tools: SearchToolsetConfig = SearchToolsetConfig()
    system: str | None = "Answer the question. Search for the facts that you need."
    """System prompt."""


class SearchTaskset(vf.Taskset[SearchTask, SearchConfig]):
    """Questions of a file, answered with Sleuth's search."""

    def load(self) -> Iterator[SearchTask]:
        for each in questions.stream(self.config.questions):
            answers = list(each.golden_answers)
            data = SearchData(id=each.id, prompt=each.question, system_prompt=self.config.system, answers=answers)
            yield SearchTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: SearchConfig) -> list[vf.Toolset]:
        return [SearchToolset(config.tools)]


class SearchEnvConfig(vf.SingleAgentEnvConfig):
    """The harness executes nothing that the model wrote, so it needs no sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class SearchEnv(vf.Env[SearchEnvConfig]):
    """One agent that answers the question."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)


if __name__ == "__main__":
    SearchToolset.run()
