"""HTTP API documentation: the OpenAPI schema of every path, and a /docs page rendered without scripts."""

import base64
import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sleuth import __version__
from sleuth.page.document import STYLE, Html, Section, document, element, joined, pairs, table
from sleuth.retrieval.wire import AccessAnswer, AccessRequest, Limits, RetrieveAnswer, RetrieveRequest

Operation = dict[str, Any]

DESCRIPTION = "Passages for queries, in the formats of Search-R1, verl, slime, RLinf, Agent Lightning and ASearcher."
RETRIEVE = """One list of hits per query, best first.

- `topk` absent, null or 0 means the server's default.
- `return_scores` true returns `{"document": row, "score": number}`, otherwise bare rows. A row is the row of the
  corpus: `id`, `contents` and all its other fields.
- `topk_retrieval` or `topk_rerank` select the rerank variant, in which a document is its contents as a string.
  A server with a cross-encoder reranks that many candidates, or its own number if that is larger; one without keeps
  the first `topk_rerank` in the order of the index.
- Unknown fields are ignored, including misspelled ones: `top_k` leaves `topk` at its default.
- If one query fails, the whole request fails with status 503 and can be retried."""
ACCESS = "One page per URL, as in the pages file; null for an unknown URL."

RETRIEVE_EXAMPLE = '{"queries": ["..."], "topk": 3, "return_scores": true}'
ACCESS_EXAMPLE = '{"urls": ["..."]}'
ROW = {"id": "42", "contents": '"Oslo"\nOslo is the capital of Norway.'}
ANSWERS: dict[str, object] = {
    "with scores": {"result": [[{"document": ROW, "score": 11.5}]]},
    "without": {"result": [[ROW]]},
    "reranked": {"result": [[{"document": ROW["contents"], "score": 7.25}]]},
}
PAGE = {"result": [{"url": "https://en.wikipedia.org/wiki/Oslo", "contents": "Oslo is the capital of Norway."}, None]}

PROBLEMS: dict[int, str] = {
    400: "The request is not valid HTTP.",
    401: "The bearer token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "The server has no pages.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The Content-Type is not application/json.",
    421: "The Host header is not a name of this server.",
    422: "The body is not valid JSON, has the wrong fields, or exceeds the server's limits.",
    503: "A query failed, pages could not be read, the queue is full, or no replica is ready; `detail` names the "
    "cause, and Retry-After the seconds to wait.",
}

STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LIMIT_NAMES = {
    "queries": "queries per request",
    "characters": "characters of a query or URL",
    "topk": "hits per query",
    "hits": "hits per request (queries times hits of each)",
    "urls": "URLs per request",
    "body": "bytes of a body",
    "body_seconds": "seconds for a body to arrive",
    "waiting": "queries in the queue",
    "waiting_characters": "characters of queries in the queue",
    "waiting_seconds": "seconds in the queue before a search starts",
    "batch": "queries per batch",
}
BOUNDS = {"minimum": "at least", "maximum": "at most", "maxItems": "at most", "maxLength": "length at most"}
IGNORED_FIELDS = "Unknown fields are ignored, because clients send their own: a misspelled field has no effect."


class Problem(BaseModel):
    """Why a request was refused, in one sentence."""

    detail: str


class Alive(BaseModel):
    """The process answers."""

    status: str


class ShardStatus(BaseModel):
    """A shard of an index that is served from a cluster: its replicas, and how many of them are ready."""

    replicas: int
    ready: int


class Ready(BaseModel):
    """The index that is served; `shards` only if it is served from a cluster."""

    status: str
    index: str
    kind: str
    passages: int
    version: str
    shards: list[ShardStatus] | None = None


def describe_retrieve(limits: Limits, k: int, candidates: int) -> Operation:
    """Return the route arguments of /retrieve; `k` hits and `candidates` to rerank are its defaults."""
    # The last two have no schema default: a client that sent the default would select the rerank variant.
    fields: dict[str, Operation] = {
        "queries": {"description": "Queries; the response has one list of hits for each."},
        "topk": {"description": "Hits per query; null and 0 mean the default.", "default": k},
        "return_scores": {"description": "Whether hits include their score.", "default": False},
        "topk_retrieval": {"description": f"Candidates to rerank; {candidates} if only `topk_rerank` is given."},
        "topk_rerank": {"description": f"Hits after reranking; {k} if only `topk_retrieval` is given."},
    }
    return {
        "description": RETRIEVE,
        "openapi_extra": _describe_body(RetrieveRequest, fields, limits, limits.queries),
        "responses": _responses(RetrieveAnswer, ANSWERS, 400, 403, 421, 401, 408, 413, 415, 422, 503),
    }


def describe_access(limits: Limits) -> Operation:
    """Return the route arguments of /access."""
    fields = {"urls": {"description": "URLs of pages."}}
    return {
        "description": ACCESS,
        "openapi_extra": _describe_body(AccessRequest, fields, limits, limits.urls),
        "responses": _responses(
            AccessAnswer, {"a page and none": PAGE}, 400, 403, 421, 401, 404, 408, 413, 415, 422, 503
        ),
    }


def _describe_body(model: type[BaseModel], fields: dict[str, Operation], limits: Limits, most: int) -> Operation:
    """Return the schema of a request body, which FastAPI cannot infer because the handlers parse bodies."""
    schema = model.model_json_schema()
    for name, field in schema["properties"].items():
        field.update(fields[name])
        if field.get("type") == "array":
            field["maxItems"] = most
            field["items"]["maxLength"] = limits.characters
        for choice in field.get("anyOf", ()):
            if choice["type"] == "integer":
                choice["maximum"] = limits.topk
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _responses(model: type[BaseModel], examples: dict[str, object], *problems: int) -> dict[int | str, Operation]:
    named = {name: {"value": value} for name, value in examples.items()}
    content = {"application/json": {"examples": named}}
    success: Operation = {"description": str(model.__doc__), "model": model, "content": content}
    return {200: success, **_problems(*problems)}


def _problems(*statuses: int) -> dict[int | str, Operation]:
    described: dict[int | str, Operation] = {
        status: {"description": PROBLEMS[status], "model": Problem} for status in statuses
    }
    if 503 in described:
        described[503]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return described


READY = {"status": "ready", "index": "indexes/wiki", "kind": "bm25", "passages": 21_015_324, "version": __version__}
HEALTHZ: Operation = {"responses": _responses(Alive, {"always": {"status": "ok"}}, 403, 421)}
READYZ: Operation = {
    "response_model_exclude_none": True,
    "responses": _responses(Ready, {"for example": READY}, 401, 403, 421, 503),
}
METRICS: Operation = {
    "responses": {200: {"description": "Metrics in the Prometheus text format."}, **_problems(401, 403, 421)}
}


@dataclass(frozen=True, slots=True)
class DocsPage:
    """The page at /docs of a server with these limits."""

    limits: Limits
    needs_token: bool

    async def respond(self, request: Request) -> Response:
        """Return the page, with curl commands for the address of the request."""
        page = self.render(request.app.openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    def render(self, openapi: dict[str, Any], address: str) -> Html:
        """Render an OpenAPI document as HTML."""
        operations = [
            Section(f"{method.upper()} {path}", *self._operation(operation, address + path))
            for path, methods in openapi["paths"].items()
            for method, operation in methods.items()
        ]
        limits = pairs([(LIMIT_NAMES[name], f"{most:,.12g}") for name, most in asdict(self.limits).items()])
        source = element("p", "For programs: ", element("a", "openapi.json", href="openapi.json"), class_="quiet")
        about = element("p", openapi["info"]["description"])
        title = f"{openapi['info']['title']} {openapi['info']['version']}"
        return document(title, about, source, *operations, Section("Limits", limits))

    def _operation(self, operation: dict[str, Any], url: str) -> list[Html]:
        body, responses = operation.get("requestBody"), operation["responses"]
        token = ' -H "Authorization: Bearer $TOKEN"' if self.needs_token and "401" in responses else ""
        command = f"curl {shlex.quote(url)}{token}"
        examples = responses["200"].get("content", {}).get("application/json", {}).get("examples", {})
        shown = [
            (name, element("pre", json.dumps(example["value"], ensure_ascii=False)))
            for name, example in examples.items()
        ]
        # Descriptions are simple Markdown: a paragraph, a list, and code in backticks.
        first, *points = (_inline(block) for block in operation["description"].split("\n- "))
        return [
            element("p", first),
            *([element("ul", *(element("li", point) for point in points))] if points else []),
            *(_request(body["content"]["application/json"]["schema"], command) if body else [element("pre", command)]),
            *([table(("answer", "as JSON"), shown)] if shown else []),
            table(
                ("status", "meaning"), [(status, _inline(each["description"])) for status, each in responses.items()]
            ),
        ]


def _request(schema: dict[str, Any], command: str) -> list[Html]:
    defaults = {name: json.dumps(field.get("default")) for name, field in schema["properties"].items()}
    defaults |= dict.fromkeys(schema["required"], "required")
    rows = [
        (element("code", name), _type(field), defaults[name], _inline(field["description"]))
        for name, field in schema["properties"].items()
    ]
    bodies = (shlex.quote(json.dumps(example)) for example in schema["examples"])
    calls = (element("pre", f"{command} -H 'Content-Type: application/json' -d {body}") for body in bodies)
    return [table(("field", "type", "default", "meaning"), rows), element("p", IGNORED_FIELDS), *calls]


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    bounds = ", ".join(f"{words} {schema[bound]:,.0f}" for bound, words in BOUNDS.items() if bound in schema)
    items = f" of {_type(schema['items'])}" if "items" in schema else ""
    return f"{schema['type']} ({bounds}){items}" if bounds else f"{schema['type']}{items}"


def _inline(text: str) -> Html:
    return joined(element("code", part) if place % 2 else part for place, part in enumerate(text.split("`")))
