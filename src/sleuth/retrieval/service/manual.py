"""The page at /docs: what the OpenAPI says, for a browser and without script, font or image from anywhere."""

import base64
import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sleuth.page.document import STYLE, document, pairs, section, table
from sleuth.page.markup import Html, element, joined
from sleuth.retrieval.service.limits import Limits

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Beyond what the page says of itself: this one style sheet only, and in no frame.
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LIMITS = {
    "queries": "queries in a request",
    "characters": "characters of a query or url",
    "topk": "hits of a query",
    "hits": "hits of a request, queries times hits of each",
    "urls": "urls in a request",
    "body": "bytes of a body",
    "body_seconds": "seconds for a body to arrive",
    "waiting": "queries waiting",
    "waiting_characters": "characters of queries waiting",
    "waiting_seconds": "seconds until a request has its first turn",
    "batch": "queries searched at once",
}
BOUNDS = {"minimum": "at least", "maximum": "at most", "maxItems": "at most", "maxLength": "length at most"}
OTHERS = "Other fields are ignored without a word, since clients send fields of their own: a misspelt one does nothing."


@dataclass(frozen=True, slots=True)
class Manual:
    """How to call a server with these limits; `guarded` where it asks for a token."""

    limits: Limits
    guarded: bool

    async def answer(self, request: Request) -> Response:
        """The page, with commands that call the server at the address it was asked at."""
        page = self.page(request.app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    def page(self, openapi: dict[str, Any], address: str) -> Html:
        """The whole page of an OpenAPI."""
        operations = [
            section(f"{method.upper()} {path}", *self._operation(operation, address + path))
            for path, methods in openapi["paths"].items()
            for method, operation in methods.items()
        ]
        limits = pairs([(LIMITS[name], f"{most:,.12g}") for name, most in asdict(self.limits).items()])
        source = element("p", "For programs: ", element("a", "openapi.json", href="openapi.json"), class_="quiet")
        about = element("p", openapi["info"]["description"])
        title = f"{openapi['info']['title']} {openapi['info']['version']}"
        return document(title, about, source, *operations, section("Limits", limits))

    def _operation(self, operation: dict[str, Any], url: str) -> list[Html]:
        body, responses = operation.get("requestBody"), operation["responses"]
        token = ' -H "Authorization: Bearer $TOKEN"' if self.guarded and "401" in responses else ""
        command = f"curl {shlex.quote(url)}{token}"
        return [
            _prose(operation["description"]),
            *(_request(body["content"]["application/json"]["schema"], command) if body else [element("pre", command)]),
            *_answers(responses["200"].get("content", {}).get("application/json", {}).get("examples", {})),
            table(("status", "meaning"), [(status, _line(each["description"])) for status, each in responses.items()]),
        ]


def _request(schema: dict[str, Any], command: str) -> list[Html]:
    defaults = {name: json.dumps(field.get("default")) for name, field in schema["properties"].items()}
    defaults |= dict.fromkeys(schema["required"], "required")
    rows = [
        (element("code", name), _type(field), defaults[name], _line(field["description"]))
        for name, field in schema["properties"].items()
    ]
    bodies = (shlex.quote(json.dumps(each)) for each in schema["examples"])
    calls = (element("pre", f"{command} -H 'Content-Type: application/json' -d {body}") for body in bodies)
    return [table(("field", "type", "default", "meaning"), rows), element("p", OTHERS), *calls]


def _answers(examples: dict[str, Any]) -> list[Html]:
    shown = [(name, element("pre", json.dumps(each["value"], ensure_ascii=False))) for name, each in examples.items()]
    return [table(("answer", "as JSON"), shown)] if shown else []


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    bounds = ", ".join(f"{words} {schema[bound]:,.0f}" for bound, words in BOUNDS.items() if bound in schema)
    items = f" of {_type(schema['items'])}" if "items" in schema else ""
    return f"{schema['type']} ({bounds}){items}" if bounds else f"{schema['type']}{items}"


def _prose(text: str) -> Html:
    """The little Markdown of our descriptions: a paragraph, a list after it, code in backticks."""
    first, *points = (_line(block) for block in text.split("\n- "))
    return joined([element("p", first), element("ul", *(element("li", each) for each in points)) if points else ""])


def _line(text: str) -> Html:
    return joined(element("code", part) if place % 2 else part for place, part in enumerate(text.split("`")))
