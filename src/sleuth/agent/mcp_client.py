"""The tools of an MCP server, over streamable HTTP."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from sleuth.agent.tools import Tool, Toolbox
from sleuth.errors import FunctionFailed, InputError, MissingExtra

try:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match
    from mcp import Client
    from mcp.types import TextContent
    from mcp.types import Tool as Declaration
except ImportError as error:
    raise MissingExtra("mcp", "mcp") from error

CONNECT_SECONDS = 10.0


def server_tools(url: str) -> list[Tool]:
    """List the tools of a server; raises InputError if the server does not respond."""
    try:
        declarations = asyncio.run(asyncio.wait_for(_list_tools(url), CONNECT_SECONDS))
    except Exception as error:  # the SDK raises exception groups of its own and its transport's errors
        raise InputError(
            f"agent.tools: no MCP server answers at {url} ({_cause(error)}); start it, or correct the address"
        ) from error
    if not declarations:
        raise InputError(f"agent.tools: the MCP server at {url} has no tools; remove it, or correct the address")
    return [_tool(url, declaration) for declaration in declarations]


async def _list_tools(url: str) -> list[Declaration]:
    async with Client(url) as client:
        listed = await client.list_tools()
        found = list(listed.tools)
        while listed.next_cursor:
            listed = await client.list_tools(cursor=listed.next_cursor)
            found += listed.tools
    return found


def _tool(url: str, declaration: Declaration) -> Tool:
    name, schema = declaration.name, dict(declaration.input_schema)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InputError(
            f"the tool {name!r} of {url} has an invalid JSON schema ({error.message}); fix the schema, or remove the "
            "server from agent.tools"
        ) from error
    validator = Draft202012Validator(schema)

    def validate(arguments: Mapping[str, Any]) -> dict[str, Any]:
        problem = best_match(validator.iter_errors(dict(arguments)))
        if problem is not None:
            raise ValueError(f"the arguments of {name} are not valid: {problem.message}")
        return dict(arguments)

    description = declaration.description or declaration.title or name
    return Tool(name, description, schema, validate, partial(_run, url, name))


async def _run(url: str, name: str, _toolbox: Toolbox, arguments: Mapping[str, Any]) -> str:
    try:  # a new session per call: servers behind load balancers keep no sessions
        async with Client(url) as client:
            result = await client.call_tool(name, dict(arguments))
    except Exception as error:
        raise FunctionFailed(f"the tool {name!r} of {url} failed: {_cause(error)}") from error
    text = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
    if result.is_error:
        raise FunctionFailed(f"the tool {name!r} of {url} failed: {text or 'no reason given'}")
    return text


def _cause(error: BaseException) -> str:
    """Describe the innermost cause of an exception group in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
