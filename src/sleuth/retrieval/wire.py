"""The shapes of search over HTTP: what clients of Search-R1 and its descendants send, and the answers they read."""

import hashlib
import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field

from sleuth.records import Hit, Passage

Row = dict[str, Any]


class RetrieveRequest(BaseModel):
    """A search for one or many queries; `topk` absent, null or 0 means the server's own default."""

    # Clients of the field send fields of their own; a server that refused them would not be theirs any more.
    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"queries": ["capital of Norway"], "topk": 3, "return_scores": True},
                {"queries": ["capital of Norway", "largest fjord"]},
                {"queries": ["capital of Norway"], "topk_retrieval": 10, "topk_rerank": 3, "return_scores": True},
            ]
        },
    )

    # The first that is no string is enough: a body of millions of numbers would be as many errors.
    queries: Annotated[list[str], FailFast()]
    topk: Annotated[int | None, Field(ge=0)] = None
    return_scores: bool | None = None
    topk_retrieval: Annotated[int | None, Field(ge=0, description="candidates, for a server that reranks")] = None
    topk_rerank: Annotated[int | None, Field(ge=0, description="hits left of them")] = None

    @property
    def reranks(self) -> bool:
        """Whether the client speaks the rerank variant, in which a document is a string."""
        return self.topk_retrieval is not None or self.topk_rerank is not None


class RetrieveAnswer(BaseModel):
    """One list a query, best first: bare rows, or `{"document": row, "score": number}` where scores were asked for.

    In the rerank variant a document is a string, with scores and without.
    """

    result: list[list[Row | str]]


class AccessRequest(BaseModel):
    """Pages wanted, by url."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"urls": ["https://en.wikipedia.org/wiki/Oslo"]}]},
    )

    urls: Annotated[list[str], FailFast()]


class AccessAnswer(BaseModel):
    """One page a url, null where there is none."""

    result: list[Row | None]


def row_of(passage: Passage) -> Row:
    """A passage as the corpus row it was."""
    return {"id": passage.id, "contents": passage.contents, **passage.extra}


def scored(hit: Hit) -> Row:
    return {"document": row_of(hit.passage), "score": hit.score}


def reranked(hit: Hit) -> Row:
    """The rerank variant, in which the document is its contents."""
    return {"document": hit.passage.contents, "score": hit.score}


def hits_of(items: object) -> list[Hit]:
    """The hits in one query's part of an answer, whichever of the known shapes it has; else a ValueError says why.

    Servers that give no score are read as best first: the score is then the reciprocal of the place.
    """
    if not isinstance(items, list):
        raise ValueError(f"the hits of a query are of type {type(items).__name__}, expected a list")
    return [_hit(item, place) for place, item in enumerate(items, 1)]


def _hit(item: object, place: int) -> Hit:
    row, score = item, None
    if isinstance(item, dict) and "document" in item:
        row, score = item["document"], item.get("score")
    elif isinstance(item, dict) and "score" in item:
        row, score = {key: value for key, value in item.items() if key != "score"}, item["score"]
    if score is None:
        score = 1.0 / place
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"a score is {score!r}, expected a finite number")
    return Hit(_passage(row), float(score))


def _passage(row: object) -> Passage:
    if isinstance(row, str):
        return Passage(_name(row), row)
    if not isinstance(row, dict):
        raise ValueError(f"a document is of type {type(row).__name__}, expected an object or a string")
    contents, name = _contents(row), row.get("id")
    extra = {key: value for key, value in row.items() if key not in ("id", "contents")}
    return Passage(_name(contents) if name is None else str(name), contents, extra)


def _contents(row: Row) -> str:
    """The contents of a row; one with title and text only, as some services give, has them put together."""
    contents = row.get("contents")
    if isinstance(contents, str):
        return contents
    title, text = row.get("title"), row.get("text")
    if contents is None and isinstance(text, str):
        return f'"{title}"\n{text}' if isinstance(title, str) else text
    raise ValueError('a document has no text; expected "contents", or "title" and "text"')


def _name(contents: str) -> str:
    """An id for a document that has none: the same text has the same."""
    return hashlib.sha256(contents.encode("utf-8", "surrogatepass")).hexdigest()[:16]
