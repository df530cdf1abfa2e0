"""The tools of an agent: built-in tools, Python functions, MCP servers and verl tool files, with limits and usage."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from sleuth.agent.chat_template import Function
from sleuth.config.agent import TOOL_FILES, AgentConfig, ToolLimits
from sleuth.config.hooks import IMPORT, describe_exception, import_function, is_async
from sleuth.config.verl import read_search_tool
from sleuth.errors import ConfigError, FunctionFailed, SearchUnavailable
from sleuth.http.connections import LoopSemaphore, RateLimiter
from sleuth.records import Hit, Malformed, ToolCall
from sleuth.retrieval.backends import in_daemon_thread
from sleuth.retrieval.retriever import Pages, Retriever

MAX_LOOKUPS = 10  # queries or URLs in one call
MCP = "mcp:"

Hits = tuple[tuple[Hit, ...], ...]  # the passages of each query, or the page, if any, of each URL
ToolResult = Hits | str
Failure = SearchUnavailable | FunctionFailed
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model can call.

    `parameters` is the JSON schema of the arguments. `validate` returns the arguments to pass to `run`, or raises a
    ValueError whose message is shown to the model. `run` raises SearchUnavailable or FunctionFailed if the call fails.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    validate: Callable[[Mapping[str, Any]], dict[str, Any]]
    run: "Callable[[Toolbox, Mapping[str, Any]], Coroutine[Any, Any, ToolResult]]"
    limits: ToolLimits = field(default_factory=ToolLimits)

    @property
    def function(self) -> Function:
        """The declaration that chat templates and OpenAI-compatible servers expect."""
        declared = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": declared}

    @property
    def only_parameter(self) -> str | None:
        """Name of the tool's parameter if it has exactly one, else None."""
        names = list(self.parameters.get("properties", {}))
        return names[0] if len(names) == 1 else None


def _lookup_schema(name: str, description: str) -> Mapping[str, Any]:
    texts = {"type": "array", "items": {"type": "string"}, "description": description}
    return {"type": "object", "properties": {name: texts}, "required": [name]}


def _lookup_validator(tool: str, *names: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a validator that accepts a string or a list of strings under any of these argument names."""

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


def _available(result: Result | SearchUnavailable) -> Result:
    if isinstance(result, SearchUnavailable):
        raise result
    return result


async def _search(toolbox: "Toolbox", arguments: Mapping[str, Any]) -> Hits:
    results = await toolbox.retriever.search(list(arguments["query_list"]), toolbox.k)
    return tuple(tuple(_available(result)) for result in results)


async def _access(toolbox: "Toolbox", arguments: Mapping[str, Any]) -> Hits:
    urls = list(arguments["urls"])
    if toolbox.pages is None:
        raise SearchUnavailable(urls[0], "there are no pages to open")
    pages = map(_available, await toolbox.pages.access(urls))
    return tuple(() if page is None else (Hit(page, 1.0),) for page in pages)


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
    """Validate the arguments of a call; return the call, or Malformed with the reason."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return Malformed(f"there is no such function; there is {' and '.join(tool.name for tool in tools)}")
    try:
        return ToolCall(name, tool.validate(arguments))
    except ValueError as error:
        return Malformed(str(error))


@dataclass(slots=True)
class Usage:
    """Call statistics of a tool: `seconds` is the summed duration, `busy` the time with at least one call running."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    running: int = 0
    _since: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        start = time.monotonic()
        if not self.running:
            self._since = start
        self.running += 1
        try:
            yield
        except (SearchUnavailable, FunctionFailed):
            self.failures += 1
            raise
        finally:
            self.running -= 1
            self.calls += 1
            self.seconds += time.monotonic() - start
            if not self.running:
                self.busy += time.monotonic() - self._since


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of an agent, with the retriever and the pages that `search` and `access` use.

    `searches` measures the calls of these two tools; `usage` has an entry for every other tool.
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
        return any(usage.running for usage in (self.searches, *self.usage.values()))

    def tool(self, name: str) -> Tool | None:
        """Return the tool with this name; search and access are available even if the model may not call them."""
        return next((tool for tool in self.tools if tool.name == name), TOOLS.get(name))

    def validate(self, call: ToolCall) -> ToolCall | Malformed:
        tool = self.tool(call.name)
        return validate_call(call.name, call.arguments, self.tools if tool is None else (tool,))

    async def search(self, query: str) -> tuple[Hit, ...] | SearchUnavailable:
        result = await self.call(ToolCall.search(query))
        if isinstance(result, SearchUnavailable):
            return result
        assert isinstance(result, tuple)  # noqa: S101  search returns passages
        return result[0]

    async def call(self, call: ToolCall) -> ToolResult | Failure:
        """Run a validated call; if any of its queries fails, the whole call fails."""
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


def load_tools(config: AgentConfig) -> tuple[Tool, ...]:
    """Load the tools of agent.tools with their limits; raises ConfigError or InputError before any episode runs."""
    tools: list[Tool] = []
    for entry in config.tools:
        if entry in TOOLS:
            tools.append(TOOLS[entry])
        elif entry.startswith(IMPORT):
            tools.append(function_tool(entry, import_function(entry)))
        elif entry.startswith(MCP):
            from sleuth.agent.mcp_client import server_tools

            tools += server_tools(entry.removeprefix(MCP))
        elif entry.endswith(TOOL_FILES):
            match read_search_tool(Path(entry)).get("tool_schema"):  # its service becomes retrieval.index
                case {"function": {"description": str(description)}}:
                    tools.append(replace(TOOLS["search"], description=description))
                case _:
                    tools.append(TOOLS["search"])
    names = [tool.name for tool in tools]
    for tool in tools:
        if tool.name in TOOLS and tool.run is not TOOLS[tool.name].run:
            raise ConfigError(f"agent.tools: your tool {tool.name!r} has the name of a built-in tool; rename it")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"agent.tools = {config.tools} has two tools named {name!r}; rename or remove one")
    for name in config.tool_limits:
        if name not in names:
            raise ConfigError(f"agent.tool_limits.{name} has no effect: agent.tools has {', '.join(names)}; remove it")
    return tuple(replace(tool, limits=config.tool_limits.get(tool.name, ToolLimits())) for tool in tools)


def function_tool(spec: str, function: Callable[..., Any]) -> Tool:
    """Wrap a plain or async Python function as a tool; type hints give the schema, the docstring the description."""
    name = getattr(function, "__name__", "")
    description = inspect.getdoc(function)
    if not name.isidentifier():
        raise ConfigError(f"{spec!r} is a {type(function).__name__} without a name; expected a function")
    if not description:
        raise ConfigError(f"{spec!r} has no docstring, which tells the model what the tool does; write one")
    model = _arguments_model(spec, function)
    schema = model.model_json_schema()
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    schema.setdefault("properties", {})

    def validate(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            model.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"])) + (": " if first["loc"] else "")
            problem = first["msg"][0].lower() + first["msg"][1:]
            raise ValueError(f"the arguments of {name} are not valid: {place}{problem}") from None
        return dict(arguments)

    async def run(_toolbox: Toolbox, arguments: Mapping[str, Any]) -> str:
        values = dict(model.model_validate(dict(arguments)))
        try:
            if is_async(function):
                result = await function(**values)
            else:  # in a thread, so that a slow function does not block other episodes
                result = await in_daemon_thread(partial(function, **values))
                if isinstance(result, Awaitable):
                    result = await result
        except Exception as error:
            raise FunctionFailed(describe_exception(spec, error)) from error
        return _result_text(spec, result)

    return Tool(name, description, schema, validate, run)


def _arguments_model(spec: str, function: Callable[..., Any]) -> type[BaseModel]:
    """Build a pydantic model of the parameters; raises ConfigError if a parameter has no type hint."""
    try:
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{spec!r} has no readable signature ({error}); write type hints") from error
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or name not in hints:
            raise ConfigError(
                f"{spec!r} takes {parameter}, which has no JSON schema; give every parameter a name and a type hint"
            )
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    try:
        model: type[BaseModel] = create_model(
            function.__name__, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields
        )
        model.model_json_schema()
    except (PydanticUserError, NameError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{spec!r} has a parameter without a JSON schema ({reason}); use JSON types") from error
    return model


def _result_text(spec: str, result: object) -> str:
    """Convert a tool's result to the text shown to the model: strings unchanged, anything else as JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        raise FunctionFailed(f"{spec!r} returned None; expected text or a JSON value")
    try:
        return to_json(result).decode()
    except PydanticSerializationError as error:
        raise FunctionFailed(f"{spec!r} returned {type(result).__name__} ({error}); expected a JSON value") from error
