"""The tools of an agent: name, JSON schema and function of each, their limits, and a record of their use."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sleuth.agent.chat_template import Function
from sleuth.config.agent import AgentConfig, ToolLimits
from sleuth.errors import FunctionFailed, SearchUnavailable
from sleuth.http.connections import LoopSemaphore, RateLimiter
from sleuth.records import Hit, Malformed, ToolCall
from sleuth.retrieval.retriever import Pages, Retriever

MAX_LOOKUPS = 10  # queries or URLs in one call

Hits = tuple[tuple[Hit, ...], ...]  # the passages of each query, or the page, if any, of each URL
ToolResult = Hits | str
Failure = SearchUnavailable | FunctionFailed


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model can call.

    `parameters` is the JSON schema of its arguments. `validate` returns the arguments to call it with, or raises a
    ValueError whose message the model is shown. `run` raises SearchUnavailable or FunctionFailed if the call fails.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    validate: Callable[[Mapping[str, Any]], dict[str, Any]]
    run: "Callable[[Toolbox, Mapping[str, Any]], Coroutine[Any, Any, ToolResult]]"
    in_process: bool = True
    limits: ToolLimits = field(default_factory=ToolLimits)

    @property
    def function(self) -> Function:
        """The declaration that chat templates and OpenAI-compatible servers expect."""
        declared = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": declared}

    @property
    def only_parameter(self) -> str | None:
        """The name of the parameter if there is exactly one."""
        names = list(self.parameters.get("properties", {}))
        return names[0] if len(names) == 1 else None


def _lookup_schema(name: str, description: str) -> Mapping[str, Any]:
    texts = {"type": "array", "items": {"type": "string"}, "description": description}
    return {"type": "object", "properties": {name: texts}, "required": [name]}


def _lookup_validator(tool: str, *names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Accept a string or a list of strings under any of the names that models use for it."""

    def validate(arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = next((arguments[name] for name in names if name in arguments), None)
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise ValueError(f"the call of {tool} needs {names[0]}, a list of strings")
        texts = [text.strip() for text in given if text.strip()]
        if not texts:
            raise ValueError(f"the call of {tool} is empty")
        if len(texts) > MAX_LOOKUPS:
            raise ValueError(f"the call of {tool} holds more than {MAX_LOOKUPS} texts")
        return {names[0]: texts}

    return validate


async def _search(toolbox: "Toolbox", arguments: Mapping[str, Any]) -> Hits:
    results = await toolbox.retriever.search(list(arguments["query_list"]), toolbox.k)
    for result in results:
        if isinstance(result, SearchUnavailable):
            raise result
    return tuple(tuple(result) for result in results if not isinstance(result, SearchUnavailable))


async def _access(toolbox: "Toolbox", arguments: Mapping[str, Any]) -> Hits:
    urls = list(arguments["urls"])
    if toolbox.pages is None:
        raise SearchUnavailable(urls[0], "there are no pages to open")
    pages = await toolbox.pages.access(urls)
    for page in pages:
        if isinstance(page, SearchUnavailable):
            raise page
    return tuple(() if page is None else (Hit(page, 1.0),) for page in pages if not isinstance(page, SearchUnavailable))


TOOLS: dict[str, Tool] = {
    "search": Tool(
        "search",
        "Asks the search engine and shows the passages that it finds for each query.",
        _lookup_schema("query_list", "What to search for, one query or several."),
        _lookup_validator("search", "query_list", "queries", "query"),
        _search,
    ),
    "access": Tool(
        "access",
        "Shows the text of web pages.",
        _lookup_schema("urls", "The addresses of the pages."),
        _lookup_validator("access", "urls", "url"),
        _access,
    ),
}
SEARCH = TOOLS["search"]


def validate_call(name: str, arguments: Mapping[str, Any], tools: Sequence[Tool]) -> ToolCall | Malformed:
    """The call with validated arguments, or the reason why it is invalid."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return Malformed(f"there is no such function; there is {' and '.join(tool.name for tool in tools)}")
    try:
        return ToolCall(name, tool.validate(arguments))
    except ValueError as error:
        return Malformed(str(error))


@dataclass(slots=True)
class Usage:
    """Statistics of a tool: calls, failures, total seconds, and seconds during which at least one call was running."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    _running: int = 0
    _since: float = 0.0

    @property
    def is_running(self) -> bool:
        return self._running > 0

    @contextmanager
    def measure(self) -> Iterator[None]:
        start = time.monotonic()
        if not self._running:
            self._since = start
        self._running += 1
        try:
            yield
        except (SearchUnavailable, FunctionFailed):
            self.failures += 1
            raise
        finally:
            self._running -= 1
            self.calls += 1
            self.seconds += time.monotonic() - start
            if not self._running:
                self.busy += time.monotonic() - self._since


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of an agent, with the retriever and the pages that `search` and `access` use.

    `searches` counts the calls of both; `usage` has an entry for each of the other tools.
    """

    retriever: Retriever
    k: int
    pages: Pages | None = None
    tools: tuple[Tool, ...] = (SEARCH,)
    searches: Usage = field(default_factory=Usage)
    usage: dict[str, Usage] = field(init=False)
    _gates: dict[str, tuple[LoopSemaphore, RateLimiter]] = field(init=False)

    def __post_init__(self) -> None:
        others = [tool for tool in self.tools if tool.name not in TOOLS]
        object.__setattr__(self, "usage", {tool.name: Usage() for tool in others})
        gates = {tool.name: (LoopSemaphore(tool.limits.concurrency), RateLimiter(tool.limits.rate)) for tool in others}
        object.__setattr__(self, "_gates", gates)

    @property
    def is_running(self) -> bool:
        """Whether any call is in progress."""
        return self.searches.is_running or any(usage.is_running for usage in self.usage.values())

    def tool(self, name: str) -> Tool | None:
        """The tool of that name; search and access exist even if the model is not offered them."""
        return next((tool for tool in self.tools if tool.name == name), TOOLS.get(name))

    def validate(self, call: ToolCall) -> ToolCall | Malformed:
        """The call with validated arguments, or the reason why it is invalid."""
        tool = self.tool(call.name)
        return validate_call(call.name, call.arguments, self.tools if tool is None else (tool,))

    def max_calls(self, name: str, config: AgentConfig) -> int | None:
        """The number of calls that an episode may make of a tool."""
        tool = self.tool(name)
        return config.searches if name == "search" else None if tool is None else tool.limits.calls

    async def search(self, query: str) -> tuple[Hit, ...] | SearchUnavailable:
        """Search for one query."""
        result = await self.call(ToolCall.search(query))
        if isinstance(result, SearchUnavailable):
            return result
        assert isinstance(result, tuple)  # noqa: S101  search returns passages
        return result[0]

    async def call(self, call: ToolCall) -> ToolResult | Failure:
        """Run a validated call; if one of several queries fails, the whole call does."""
        tool = self.tool(call.name)
        if tool is None:
            return FunctionFailed(f"there is no tool {call.name!r}; agent.tools has {', '.join(self.usage)}")
        try:
            if tool.name in TOOLS:
                with self.searches.measure():
                    return await tool.run(self, call.arguments)
            semaphore, rate = self._gates[tool.name]
            async with semaphore.current():
                await rate.acquire()
                with self.usage[tool.name].measure():
                    return await self._run_within_deadline(tool, call.arguments)
        except (SearchUnavailable, FunctionFailed) as failure:
            return failure

    async def _run_within_deadline(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            async with asyncio.timeout(tool.limits.deadline) as limit:
                return await tool.run(self, arguments)
        except TimeoutError as error:
            if not limit.expired():
                raise FunctionFailed(f"the tool {tool.name!r} raised TimeoutError: {error}") from error
            raise FunctionFailed(
                f"the tool {tool.name!r} did not return within {tool.limits.deadline:g} s "
                f"(agent.tool_limits.{tool.name}.deadline)"
            ) from error
