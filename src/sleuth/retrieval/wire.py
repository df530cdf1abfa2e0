"""The HTTP API of retrieval: requests and responses of Search-R1 and its descendants, and limits on requests."""

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field

from sleuth.records import Hit, Passage

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest requests that a server accepts; `hits` limits queries times topk.

    `waiting` and `waiting_characters` limit the queue of all requests, `waiting_seconds` the time that a request may
    spend in it.
    """

    queries: int = 10_000
    characters: int = 32_768
    topk: int = 1_000
    hits: int = 200_000
    urls: int = 1_000
    body: int = 16 * 2**20
    body_seconds: float = 60.0
    waiting: int = 500_000
    waiting_characters: int = 2**28
    waiting_seconds: float = 300.0
    batch: int = 512


class RetrieveRequest(BaseModel):
    """A search for one or many queries; `topk` absent, null or 0 means the server's default."""

    # Unknown fields are ignored, pydantic's default: existing clients send additional ones.
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"queries": ["capital of Norway"], "topk": 3, "return_scores": True},
                {"queries": ["capital of Norway", "largest fjord"]},
                {"queries": ["capital of Norway"], "topk_retrieval": 10, "topk_rerank": 3, "return_scores": True},
            ]
        }
    )

    # FailFast: a body of millions of numbers would otherwise produce millions of errors.
    queries: Annotated[list[str], FailFast()]
    topk: Annotated[int | None, Field(ge=0)] = None
    return_scores: bool | None = None
    topk_retrieval: Annotated[int | None, Field(ge=0, description="candidates to rerank")] = None
    topk_rerank: Annotated[int | None, Field(ge=0, description="hits after reranking")] = None

    @property
    def reranks(self) -> bool:
        """Whether this is the rerank variant, in which a document is a string."""
        return self.topk_retrieval is not None or self.topk_rerank is not None


class RetrieveAnswer(BaseModel):
    """One list per query, best first: bare rows, or `{"document": row, "score": number}` with `return_scores`.

    In the rerank variant a document is a string.
    """

    result: list[list[Row | str]]


class AccessRequest(BaseModel):
    """A request for pages by URL."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"urls": ["https://en.wikipedia.org/wiki/Oslo"]}]})

    urls: Annotated[list[str], FailFast()]


class AccessAnswer(BaseModel):
    """One page per URL, null if the URL is unknown."""

    result: list[Row | None]


def passage_row(passage: Passage) -> Row:
    """Return a passage as a corpus row."""
    return {"id": passage.id, "contents": passage.contents, **passage.extra}


def scored_row(hit: Hit) -> Row:
    """Return a hit as a corpus row with its score."""
    return {"document": passage_row(hit.passage), "score": hit.score}


def parse_hits(items: object) -> list[Hit]:
    """Parse the hits of one query in any known response format; raise ValueError for any other format.

    Hits without scores are assumed to be ordered; each scores the reciprocal of its rank.
    """
    if not isinstance(items, list):
        raise ValueError(f"the hits of a query are of type {type(items).__name__}, expected a list")
    return [_parse_hit(item, rank) for rank, item in enumerate(items, 1)]


def _parse_hit(item: object, rank: int) -> Hit:
    row, score = item, None
    if isinstance(item, dict) and "document" in item:
        row, score = item["document"], item.get("score")
    elif isinstance(item, dict) and "score" in item:
        row, score = {key: value for key, value in item.items() if key != "score"}, item["score"]
    if score is None:
        score = 1.0 / rank
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"a score is {score!r}, expected a finite number")
    return Hit(_parse_passage(row), float(score))


def _parse_passage(row: object) -> Passage:
    if isinstance(row, str):
        return Passage(_content_id(row), row)
    if not isinstance(row, dict):
        raise ValueError(f"a document is of type {type(row).__name__}, expected an object or a string")
    contents, title, text = row.get("contents"), row.get("title"), row.get("text")
    if contents is None and isinstance(text, str):
        contents = f'"{title}"\n{text}' if isinstance(title, str) else text
    if not isinstance(contents, str):
        raise ValueError('a document has no text; expected "contents", or "title" and "text"')
    extra = {key: value for key, value in row.items() if key not in ("id", "contents")}
    name = row.get("id")
    return Passage(_content_id(contents) if name is None else str(name), contents, extra)


def _content_id(contents: str) -> str:
    """Derive an id from the text of a document that has none."""
    return hashlib.sha256(contents.encode("utf-8", "surrogatepass")).hexdigest()[:16]
