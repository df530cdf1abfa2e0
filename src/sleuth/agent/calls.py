"""Function calls as JSON: which functions there are, and what a call of one asks for."""

import json
from collections.abc import Sequence
from typing import Any

from sleuth.agent.template import Function
from sleuth.records import Access, Malformed, Search

MOST = 10  # texts that one call may hold


def _function(name: str, does: str, argument: str, of: str) -> Function:
    texts = {"type": "array", "items": {"type": "string"}, "description": of}
    parameters = {"type": "object", "properties": {argument: texts}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": does, "parameters": parameters}}


FUNCTIONS: dict[str, Function] = {
    "search": _function(
        "search",
        "Asks the search engine and shows the passages that it finds for each query.",
        "query_list",
        "What to search for, one query or several.",
    ),
    "access": _function("access", "Shows the text of web pages.", "urls", "The addresses of the pages."),
}
# What models trained elsewhere call the arguments; ours comes first.
ARGUMENTS = {"search": ("query_list", "queries", "query"), "access": ("urls", "url")}
ACTIONS: dict[str, type[Search] | type[Access]] = {"search": Search, "access": Access}


def read(call: str, names: Sequence[str]) -> Search | Access | Malformed:
    """What a call of one of these functions asks for; total, it never raises."""
    try:
        value = json.loads(call)
    except (ValueError, RecursionError):
        return Malformed("the JSON of the call cannot be read")
    match value:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return _asked(name, arguments, names)
    return Malformed("the call is no object with a name and an object of arguments")


def written(action: Search | Access, arguments: str) -> str:
    """A call as JSON; no text in it can close a tag, whatever it is."""
    match action:
        case Search(texts):
            name = "search"
        case Access(texts):
            name = "access"
    call = {"name": name, arguments: {ARGUMENTS[name][0]: list(texts)}}
    return json.dumps(call, ensure_ascii=False).replace("<", "\\u003c")


def _asked(name: str, arguments: dict[str, Any], names: Sequence[str]) -> Search | Access | Malformed:
    if name not in names:
        return Malformed(f"there is no such function; there is {' and '.join(names)}")
    given = next((arguments[key] for key in ARGUMENTS[name] if key in arguments), None)
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        return Malformed(f"the call of {name} needs {ARGUMENTS[name][0]}, a list of strings")
    texts = [text.strip() for text in given if text.strip()]
    if not texts:
        return Malformed(f"the call of {name} is empty")
    if len(texts) > MOST:
        return Malformed(f"the call of {name} holds more than {MOST} texts")
    return ACTIONS[name](*texts)
