"""The turns of a trajectory as a conversation: what the model thought and did, and what it was shown."""

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from sleuth.view.line import Tree
from sleuth.view.tokens import Spans, origins
from sleuth.view.vocabulary import decoded

ACTIONS = re.compile(r"<(search|answer|access|tool_call)\b")
THOUGHT = re.compile(r"</?think>")


def prompt(row: Mapping[str, Any], tokenizer: Tokenizer | None) -> str | None:
    origin, ids = origins(row), row.get("ids") or []
    if tokenizer is None or not ids:
        return None
    first = origin.index("sampled") if "sampled" in origin else len(ids)
    return decoded(tokenizer, ids[:first])


def turns(row: Mapping[str, Any], spans: Spans, tokenizer: Tokenizer | None) -> list[Tree]:
    taken, ids = row.get("turns") or [], row.get("ids") or []
    if spans is None:
        return [_turn(turn, None, None) for turn in taken]
    ends = [*(first for first, _ in spans[1:]), len(ids)]
    return [
        _turn(turn, span, decoded(tokenizer, ids[span[1] : end]) if tokenizer is not None and span[1] < end else None)
        for turn, span, end in zip(taken, spans, ends, strict=True)
    ]


def _turn(turn: Mapping[str, Any], span: tuple[int, int] | None, shown: str | None) -> Tree:
    text = str(turn.get("text") or "")
    queries = turn.get("queries") or ([turn["query"]] if turn.get("query") is not None else [])
    return {
        "action": turn.get("action"),
        "thought": _thought(text) if turn.get("action") != "malformed" else "",
        "queries": queries,
        "urls": turn.get("urls") or [],
        "answer": turn.get("answer"),
        "reason": turn.get("reason"),
        "text": text,
        "outcome": turn.get("outcome"),
        "sampled": turn.get("tokens"),
        "formed": turn.get("formed"),
        "span": list(span) if span else None,
        "shown": shown,
        "hits": _hits(turn, len(queries)),
    }


def _hits(turn: Mapping[str, Any], queries: int) -> list[Tree]:
    """The hits of the queries one after the other; which query found each follows from the counts."""
    hits, counts = turn.get("hits") or [], turn.get("counts") or []
    owners: list[int | None] = [query for query, count in enumerate(counts) for _ in range(int(count))]
    if len(owners) != len(hits):
        owners = [0 if queries <= 1 else None for _ in hits]
    return [
        {
            "id": hit.get("id"),
            "score": hit.get("score"),
            "gold": hit.get("gold"),
            "query": owner,
            "title": hit.get("title"),
            "text": hit.get("text"),
        }
        for hit, owner in zip(hits, owners, strict=True)
    ]


def _thought(text: str) -> str:
    """What stands before the action, without the tags around it."""
    tags = list(ACTIONS.finditer(text))
    return THOUGHT.sub("", text[: tags[-1].start()] if tags else text).strip()
