"""Tools added by configuration: Python functions, MCP servers, and verl's tool files."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from sleuth.agent.tools import TOOLS, Tool, Toolbox
from sleuth.config.agent import TOOL_FILES, AgentConfig, ToolLimits
from sleuth.config.hooks import IMPORT, describe_exception, import_function, is_async
from sleuth.config.verl import read_search_tool
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.retrieval.backends import in_daemon_thread

MCP = "mcp:"


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
            tools.append(verl_search_tool(Path(entry)))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"agent.tools = {config.tools} has two tools named {name!r}; rename or remove one")
    for name in config.tool_limits:
        if name not in names:
            raise ConfigError(f"agent.tool_limits.{name} has no effect: agent.tools has {', '.join(names)}; remove it")
    return tuple(replace(tool, limits=config.tool_limits.get(tool.name, ToolLimits())) for tool in tools)


def function_tool(spec: str, function: Callable[..., Any]) -> Tool:
    """A plain or async Python function as a tool; its type hints are the schema and its docstring the description."""
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
    return Tool(name, description, schema, partial(_validate, name, model), partial(_run, spec, function, model))


def _arguments_model(spec: str, function: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model of the parameters; raises ConfigError if one has no type hint."""
    try:
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{spec!r} has no readable signature ({error}); write type hints") from error
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or name not in hints:
            raise ConfigError(
                f"{spec!r} takes {parameter}, from which no JSON schema follows; give every parameter a name and a "
                "type hint"
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


def _validate(name: str, model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        model.model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = first["msg"][0].lower() + first["msg"][1:]
        raise ValueError(f"the arguments of {name} are not valid: {f'{place}: ' if place else ''}{problem}") from None
    return dict(arguments)


async def _run(
    spec: str, function: Callable[..., Any], model: type[BaseModel], _toolbox: Toolbox, arguments: Mapping[str, Any]
) -> str:
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
    return result_text(spec, result)


def result_text(spec: str, result: object) -> str:
    """A tool's result as the model sees it: text as it is, anything else as JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        raise FunctionFailed(f"{spec!r} returned None; expected text or a JSON value")
    try:
        return to_json(result).decode()
    except PydanticSerializationError as error:
        raise FunctionFailed(f"{spec!r} returned {type(result).__name__} ({error}); expected a JSON value") from error


def verl_search_tool(file: Path) -> Tool:
    """The search tool with the description of a verl tool file; its service becomes retrieval.index."""
    match read_search_tool(file).get("tool_schema"):
        case {"function": {"description": str(description)}}:
            return replace(TOOLS["search"], description=description)
    return TOOLS["search"]
