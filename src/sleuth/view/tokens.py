"""The tokens of a trajectory, each with all that was recorded of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from sleuth.http.responses import HttpProblem
from sleuth.view.line import Tree
from sleuth.view.vocabulary import pieces

Spans = list[tuple[int, int]] | None


def origins(row: Mapping[str, Any]) -> list[str]:
    """Whether each token was given to the model or sampled from it."""
    runs = row.get("origin") or ()
    counted, there = sum(int(count) for _, count in runs), len(row.get("ids") or ())
    if counted != there:
        raise HttpProblem(503, f"the origins of the trajectory are those of {counted} tokens, and it has {there}")
    return [str(origin) for origin, count in runs for _ in range(int(count))]


def spans_of(row: Mapping[str, Any]) -> Spans:
    """The tokens of each turn, from its first to the one after its last; None where the counts do not add up."""
    sampled = [place for place, origin in enumerate(origins(row)) if origin == "sampled"]
    counts = [int(turn.get("tokens") or 0) for turn in row.get("turns") or ()]
    if not sampled or sum(counts) != len(sampled):
        return None
    spans: list[tuple[int, int]] = []
    taken = 0
    for count in counts:
        places = sampled[taken : taken + count]
        edge = spans[-1][1] if spans else sampled[0]
        spans.append((places[0], places[-1] + 1) if places else (edge, edge))
        taken += count
    return spans


def tokens(row: Mapping[str, Any], learned: Tree, spans: Spans, tokenizer: Tokenizer | None) -> Tree:
    """Lists of one entry a token, null for what was given to the model; None for a list that is not recorded."""
    ids, origin = [int(each) for each in row.get("ids") or ()], origins(row)
    turn: list[int | None] = [None] * len(ids)
    for number, (first, end) in enumerate(spans or ()):
        turn[first:end] = [number if each == "sampled" else None for each in origin[first:end]]
    return {
        "ids": ids,
        "text": pieces(tokenizer, ids) if tokenizer is not None else None,
        "origin": origin,
        "logprob": _aligned(row.get("logprobs"), origin),
        "version": _aligned(row.get("weights_versions"), origin),
        "ratio": _aligned(learned.get("ratio"), origin),
        "advantage": _aligned(learned.get("advantage"), origin),
        "weight": _aligned(learned.get("weight"), origin),
        "turn": turn,
    }


def _aligned(recorded: object, origin: Sequence[str]) -> list[float | None] | None:
    """One entry a token of what has one a sampled token, or one for all of them, or one for all from the first on."""
    sampled = [place for place, each in enumerate(origin) if each == "sampled"]
    if not sampled or recorded is None:
        return None
    if isinstance(recorded, int | float):
        recorded = [recorded] * len(sampled)
    values = list(recorded) if isinstance(recorded, list) else []
    # Where retrieved text is trained on too, every token after the prompt has a value.
    places = sampled if len(values) == len(sampled) else list(range(sampled[0], len(origin)))
    if len(values) != len(places):
        return None
    aligned: list[float | None] = [None] * len(origin)
    for place, value in zip(places, values, strict=True):
        aligned[place] = value
    return aligned
