"""What the server's OpenAPI says of each path: the body it reads, an example, and every status it answers with."""

from typing import Any

from pydantic import BaseModel

from sleuth import __version__
from sleuth.retrieval.service.limits import Limits
from sleuth.retrieval.wire import AccessAnswer, AccessRequest, RetrieveAnswer, RetrieveRequest

Operation = dict[str, Any]


class Problem(BaseModel):
    """Why a request was not served, in one sentence."""

    detail: str


class Alive(BaseModel):
    """The process answers."""

    status: str


class Ready(BaseModel):
    """The index that is served."""

    status: str
    index: str
    kind: str
    passages: int
    version: str


DESCRIPTION = (
    """Passages for queries, in the shapes that Search-R1, verl, slime, RLinf, Agent Lightning and ASearcher use."""
)

RETRIEVE = """One list of hits a query, best first.

- `topk` absent, null or 0 means the server's default.
- `return_scores` true gives `{"document": row, "score": number}`, else bare rows. A row is that of the corpus: `id`,
  `contents`, and whatever else it had.
- `topk_retrieval` or `topk_rerank` ask for the rerank variant, in which a document is a string, its contents.
  A server with a cross-encoder orders that many candidates, or its own number where that is more; one without cuts
  them to `topk_rerank` in the order of the index.
- Fields it does not know are ignored, and so is a misspelt one: `top_k` leaves `topk` at its default.
- If one query cannot be answered the whole request is a 503, to be sent again."""

ACCESS = "One page a url, as it stands in the pages file, null where it has none."

ROW = {"id": "42", "contents": '"Oslo"\nOslo is the capital of Norway.'}
ANSWERS: dict[str, object] = {
    "with scores": {"result": [[{"document": ROW, "score": 11.5}]]},
    "without": {"result": [[ROW]]},
    "reranked": {"result": [[{"document": ROW["contents"], "score": 7.25}]]},
}
PAGE = {"result": [{"url": "https://en.wikipedia.org/wiki/Oslo", "contents": "Oslo is the capital of Norway."}, None]}

ALIVE = {"status": "ok"}
READY = {"status": "ready", "index": "indexes/wiki", "kind": "bm25", "passages": 21_015_324, "version": __version__}

PROBLEMS: dict[int, str] = {
    400: "The request is no HTTP that the server understands.",
    401: "The server has a bearer token, and the request does not carry it.",
    403: "A page of another site asks.",
    404: "The server has no pages.",
    408: "The body of the request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as application/json.",
    421: "The server is not called by the name in the Host header.",
    422: "The body is no JSON, does not have this shape, or asks for more than the server's limits.",
    503: "A query could not be answered, the pages not be read, or too many queries are waiting: then Retry-After says "
    "for how many seconds. The cause is named.",
}

CHECKED = (403, 421)  # whatever the path


def retrieve(limits: Limits, k: int, candidates: int) -> Operation:
    """The arguments of the route of /retrieve: `k` hits and `candidates` to rerank, where a request does not say."""
    # The last two have no default in the schema: a client that sent it would ask for the rerank variant.
    fields: dict[str, Operation] = {
        "queries": {"description": "What is searched for; one list of hits for each."},
        "topk": {"description": "Hits a query; null and 0 mean the default.", "default": k},
        "return_scores": {"description": "Whether every hit comes with its score.", "default": False},
        "topk_retrieval": {"description": f"Candidates to rerank; {candidates} where only `topk_rerank` is given."},
        "topk_rerank": {"description": f"Hits left of them; {k} where only `topk_retrieval` is given."},
    }
    return {
        "description": RETRIEVE,
        "openapi_extra": _body(RetrieveRequest, fields, limits, limits.queries),
        "responses": {
            200: _answer(RetrieveAnswer, ANSWERS),
            **problems(400, *CHECKED, 401, 408, 413, 415, 422, 503),
        },
    }


def access(limits: Limits) -> Operation:
    """The arguments of the route of /access."""
    return {
        "description": ACCESS,
        "openapi_extra": _body(AccessRequest, {"urls": {"description": "Which pages."}}, limits, limits.urls),
        "responses": {
            200: _answer(AccessAnswer, {"a page and none": PAGE}),
            **problems(400, *CHECKED, 401, 404, 408, 413, 415, 422, 503),
        },
    }


def healthz() -> Operation:
    """The arguments of the route of /healthz."""
    return {"responses": {200: _answer(Alive, {"always": ALIVE}), **problems(*CHECKED)}}


def readyz() -> Operation:
    """The arguments of the route of /readyz."""
    return {"responses": {200: _answer(Ready, {"for example": READY}), **problems(401, *CHECKED)}}


def metrics() -> Operation:
    """The arguments of the route of /metrics."""
    return {
        "responses": {200: {"description": "The figures, in the text format of Prometheus."}, **problems(401, *CHECKED)}
    }


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers to requests that are not served."""
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": PROBLEMS[status], "model": Problem} for status in statuses
    }
    if 503 in described:
        described[503]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return described


def _body(model: type[BaseModel], fields: dict[str, Operation], limits: Limits, most: int) -> Operation:
    """The body is read and checked by the server itself, so the framework has to be told of it."""
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


def _answer(model: type[BaseModel], examples: dict[str, object]) -> Operation:
    named = {name: {"value": value} for name, value in examples.items()}
    return {"description": str(model.__doc__), "model": model, "content": {"application/json": {"examples": named}}}
