"""The functions that a request declares, checked, in the form that chat templates expect."""

import re
from collections.abc import Mapping, Sequence
from reprlib import repr as shorten
from typing import Any

from sleuth.gateway.api import ApiError

MAX_FUNCTIONS = 128
TOOL_CHOICES = ("auto", "none", "required")
JSON_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def declare_functions(functions: Sequence[tuple[str, str | None, object]]) -> tuple[Mapping[str, Any], ...]:
    """Return the declarations of functions, given as name, description and JSON schema; raises ApiError."""
    if len(functions) > MAX_FUNCTIONS:
        raise ApiError(400, f"tools has {len(functions)} functions; the maximum is {MAX_FUNCTIONS}", param="tools")
    declared: dict[str, Mapping[str, Any]] = {}
    for place, (name, description, schema) in enumerate(functions):
        where = f"tools.{place}"
        if not _FUNCTION_NAME.fullmatch(name) or name in TOOL_CHOICES:
            expected = f"1 to 64 letters, digits, '_', '-' or '.', and none of {', '.join(TOOL_CHOICES)}"
            raise ApiError(400, f"{where} has the name {shorten(name)}; expected {expected}", param="tools")
        if name in declared:
            raise ApiError(400, f"{where} has the name {name!r} again; names must be distinct", param="tools")
        schema = {"type": "object", "properties": {}} if schema is None else schema
        _check_schema(schema, f"{where} ({name}), parameters")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            message = f"{where} ({name}): parameters is {shorten(schema)}; expected a schema of type 'object'"
            raise ApiError(400, message, param="tools", code="invalid_function_parameters")
        function = {"name": name, "description": description or "", "parameters": schema}
        declared[name] = {"type": "function", "function": function}
    return tuple(declared.values())


def _check_schema(schema: object, place: str) -> None:
    """Raise ApiError unless the keywords of a JSON schema that chat templates read have values of the right types."""

    def refuse(expected: str, value: object, keyword: str = "") -> ApiError:
        where = f"{place}.{keyword}" if keyword else place
        message = f"{where} is {shorten(value)}; expected {expected}"
        return ApiError(400, message, param="tools", code="invalid_function_parameters")

    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise refuse("a JSON schema, which is an object", schema)
    kinds = schema.get("type", [])
    if not all(
        isinstance(kind, str) and kind in JSON_TYPES for kind in (kinds if isinstance(kinds, list) else [kinds])
    ):
        raise refuse(f"one of {', '.join(sorted(JSON_TYPES))}", kinds, "type")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise refuse("a list of names", required, "required")
    if not isinstance(schema.get("enum", []), list):
        raise refuse("a list of values", schema["enum"], "enum")
    for keyword in ("properties", "$defs", "definitions"):
        inner = schema.get(keyword, {})
        if not isinstance(inner, dict):
            raise refuse("an object of schemas", inner, keyword)
        for name, part in inner.items():
            _check_schema(part, f"{place}.{keyword}.{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(keyword, [])
        if not isinstance(inner, list):
            raise refuse("a list of schemas", inner, keyword)
        for position, part in enumerate(inner):
            _check_schema(part, f"{place}.{keyword}.{position}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            _check_schema(schema[keyword], f"{place}.{keyword}")


def check_tool_choice(choice: str, functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the choice; raises ApiError if it needs a function that is not declared."""
    names = [declared["function"]["name"] for declared in functions]
    if choice == "required" and not names:
        raise ApiError(400, "tool_choice is 'required' but there are no tools; send tools", param="tool_choice")
    if choice not in TOOL_CHOICES and choice not in names:
        message = f"tool_choice names {choice!r}; expected one of the tools ({', '.join(names) or 'none'})"
        raise ApiError(400, message, param="tool_choice")
    return choice
