"""Full view of a trajectory: its turns as a conversation, and its tokens with all recorded values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem
from sleuth.page.transcript import call_text
from sleuth.runs.run import STEP
from sleuth.runs.trajectory import InvalidRow, segment_rows
from sleuth.view.jsonl import Tree, parse_json
from sleuth.view.library import Root, ViewedFolder
from sleuth.view.listing import brief
from sleuth.view.trajectory_files import TrajectoryFiles, TrajectoryId

LOG_SUFFIX = ".learned"  # precedes .jsonl in the file name of the per-token training log
MISSING = {
    "text": "the folder has no readable tokenizer; give the folder of one with --tokenizer",
    "logprob": "logprobs are not recorded: the model was behind an API that returns text only",
    "version": "weight versions are not recorded",
    "ratio": "no ratio is recorded: the trajectory was not trained on, or the run did not log ratios",
    "advantage": "no advantage is recorded: the trajectory was not trained on, or the run did not log advantages",
    "documents": "passage texts are not recorded; the text shown to the model follows each search",
}
_ACTION_TAG = re.compile(r"<(search|answer|access|tool_call)\b")
_THOUGHT_TAG = re.compile(r"</?think>")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment with the position of its first token in the columns, which hold the tokens of all segments."""

    row: Row
    start: int
    origin: Sequence[str]  # of each token: shared, given or sampled

    @property
    def end(self) -> int:
        return self.start + len(self.origin)

    @property
    def sampled(self) -> list[int]:
        return [self.start + place for place, origin in enumerate(self.origin) if origin == "sampled"]

    @property
    def prompt(self) -> tuple[int, int]:
        """The positions between the shared tokens and the first sampled one."""
        shared = sum(origin == "shared" for origin in self.origin)
        return self.start + shared, next(iter(self.sampled), self.end)


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """The positions of a turn's tokens; what the model was shown next ends at `until`."""

    first: int
    end: int
    until: int


def full_trajectory(files: TrajectoryFiles, at: TrajectoryId, tokenizer: Tokenizer | None, tokens: bool = True) -> Tree:
    """Return everything recorded about a trajectory; `missing` explains what is unavailable."""
    row = files.row(at)
    log = _token_log(files, at)
    segments = place_segments(row)
    spans = turn_spans(row, segments)
    columns = token_columns(segments, log, spans, tokenizer)
    missing = {name: text for name, text in MISSING.items() if columns.get(name, 0) is None}
    turns, ids = _turns(row, columns["ids"], spans, tokenizer), columns["ids"]
    if any(hit["text"] is None for turn in turns for hit in turn["hits"]):
        missing["documents"] = MISSING["documents"]
    described = [_describe(segment, number, ids, turns, tokenizer) for number, segment in enumerate(segments)]
    return {
        **brief(at, row),
        "tokens_all": len(ids),
        "advantage": log["advantage"] if isinstance(log.get("advantage"), float | int) else None,
        "score": row.get("score"),
        "seconds": row.get("seconds"),
        "prompt": described[0]["prompt"] if described else None,
        "turns": turns,
        "segments": described,
        "tokens": columns if tokens else None,
        "missing": missing,
    }


def _describe(
    segment: PlacedSegment, number: int, ids: Sequence[int], turns: Sequence[Tree], tokenizer: Tokenizer | None
) -> Tree:
    first, end = segment.prompt
    return {
        "role": segment.row.get("role") or "",
        "parent": segment.row.get("parent"),
        "shared": first - segment.start,
        "start": segment.start,
        "end": segment.end,
        "sampled": len(segment.sampled),
        "turns": [place for place, turn in enumerate(turns) if turn["segment"] == number],
        "prompt": decode(tokenizer, ids[first:end]) if tokenizer is not None and ids else None,
    }


def neighbours(files: TrajectoryFiles, at: TrajectoryId) -> Tree:
    every = files.files()
    place = [file.step for file in every].index(at.step)

    def edge(number: int, *, last: bool) -> TrajectoryId | None:
        if not 0 <= number < len(every):
            return None
        rows = len(files.offsets(every[number]))
        return TrajectoryId(every[number].step, rows - 1 if last else 0) if rows else None

    count = len(files.offsets(every[place]))
    previous = TrajectoryId(at.step, at.row - 1) if at.row > 0 else edge(place - 1, last=True)
    following = TrajectoryId(at.step, at.row + 1) if at.row + 1 < count else edge(place + 1, last=False)
    return {"previous": str(previous) if previous else None, "next": str(following) if following else None}


def _token_log(files: TrajectoryFiles, at: TrajectoryId) -> Tree:
    if files.kind != "run":
        return {}
    file = files.file(at.step)
    line = files.sibling_row(file, LOG_SUFFIX, at.row)
    if not line:
        return {}
    try:
        found = parse_json(line)
    except InvalidRow as error:
        name = file.sibling(f"{LOG_SUFFIX}.jsonl")
        raise HttpProblem(503, f"the token log of {at} cannot be read ({error}); remove {name}") from error
    return found if isinstance(found, dict) else {}


def place_segments(row: Row) -> list[PlacedSegment]:
    found: list[PlacedSegment] = []
    for number, segment in enumerate(segment_rows(row)):
        runs, count = segment.get("origin") or (), len(segment.get("ids") or ())
        described, shared = sum(int(length) for _, length in runs), int(segment.get("shared") or 0)
        if described != count:
            problem = f"the origins of the trajectory cover {described} tokens of segment {number}, but it has {count}"
            raise HttpProblem(503, problem)
        origin = [str(origin) for origin, length in runs for _ in range(int(length))]
        if shared > count or "sampled" in origin[:shared]:
            raise HttpProblem(503, f"segment {number} of the trajectory shares {shared} tokens that it does not have")
        origin[:shared] = ["shared"] * shared
        found.append(PlacedSegment(segment, found[-1].end if found else 0, origin))
    return found


def turn_spans(row: Row, segments: Sequence[PlacedSegment]) -> list[TurnSpan | None]:
    """Return the tokens of each turn; None for turns without tokens here, and if the counts do not add up."""
    turns = row.get("turns") or []
    spans: list[TurnSpan | None] = [None] * len(turns)
    for index, segment in enumerate(segments):
        own = [(number, turn.get("tokens")) for number, turn in enumerate(turns) if turn.get("segment", 0) == index]
        calls = [(int(number), int(count or 0)) for number, count in segment.row.get("calls") or own]
        sampled = segment.sampled
        if not sampled or sum(count for _, count in calls) != len(sampled):
            continue
        edges: list[tuple[int, int]] = []
        taken = 0
        for _, count in calls:
            places = sampled[taken : taken + count]
            edge = edges[-1][1] if edges else sampled[0]
            edges.append((places[0], places[-1] + 1) if places else (edge, edge))
            taken += count
        untils = [*(first for first, _ in edges[1:]), segment.end]
        for (number, _), (first, end), until in zip(calls, edges, untils, strict=True):
            if 0 <= number < len(spans):
                spans[number] = TurnSpan(first, end, until)
    return spans


def token_columns(
    segments: Sequence[PlacedSegment], log: Tree, spans: Sequence[TurnSpan | None], tokenizer: Tokenizer | None
) -> Tree:
    """Return lists with one entry per token of all segments, null where a token was not sampled here.

    A column that was not recorded is None.
    """
    ids = [int(each) for segment in segments for each in segment.row.get("ids") or ()]
    origin = [each for segment in segments for each in segment.origin]
    turn: list[int | None] = [None] * len(ids)
    for number, span in enumerate(spans):
        if span is not None:
            own = slice(span.first, span.end)
            turn[own] = [number if each == "sampled" else None for each in origin[own]]
    texts = None
    if tokenizer is not None:
        texts = [text for each in segments for text in token_texts(tokenizer, ids[each.start : each.end])]
    recorded = {
        "logprob": [value for segment in segments for value in segment.row.get("logprobs") or ()],
        "version": [value for segment in segments for value in segment.row.get("weights_versions") or ()],
        **{name: log.get(name) for name in ("ratio", "advantage", "weight")},
    }
    aligned = {name: _aligned(values, segments) for name, values in recorded.items()}
    return {"ids": ids, "text": texts, "origin": origin, **aligned, "turn": turn}


def _aligned(recorded: object, segments: Sequence[PlacedSegment]) -> list[float | None] | None:
    """Expand to all tokens a single value, one value per sampled token, or one per token after the prompt."""
    sampled = [place for segment in segments for place in segment.sampled]
    if not sampled or recorded is None:
        return None
    if isinstance(recorded, int | float):
        recorded = [recorded] * len(sampled)
    values = list(recorded) if isinstance(recorded, list) else []
    # If retrieved text is trained on as well, every token after the prompt has a value.
    after = [place for segment in segments for place in range(segment.prompt[1], segment.end)]
    places = sampled if len(values) == len(sampled) else after
    if len(values) != len(places):
        return None
    aligned: list[float | None] = [None] * segments[-1].end
    for place, value in zip(places, values, strict=True):
        aligned[place] = value
    return aligned


def _turns(row: Row, ids: Sequence[int], spans: Sequence[TurnSpan | None], tokenizer: Tokenizer | None) -> list[Tree]:
    turns = row.get("turns") or []
    rewards = (row.get("score") or {}).get("turns") or []
    if len(rewards) != len(turns):  # the reward function gave none
        rewards = [None] * len(turns)
    found = []
    for turn, span, reward in zip(turns, spans, rewards, strict=True):
        shown = None
        if span and tokenizer is not None and span.end < span.until:
            shown = decode(tokenizer, ids[span.end : span.until])
        place = {"reward": reward, "segment": turn.get("segment", 0), "span": [span.first, span.end] if span else None}
        found.append({**_turn(turn), **place, "shown": shown})
    return found


def _turn(turn: Row) -> Tree:
    text = str(turn.get("text") or "")
    queries = turn.get("queries") or ([turn["query"]] if turn.get("query") is not None else [])
    before = text.partition(f"<{turn['name']}>")[0] if turn.get("action") == "tool" else text
    tags = list(_ACTION_TAG.finditer(before))
    if not tags:
        before = before.rstrip().removesuffix(str(turn.get("answer") or ""))  # an answer without tags ends the text
    thought = _THOUGHT_TAG.sub("", before[: tags[-1].start()] if tags else before).strip()
    return {
        "action": turn.get("action"),
        "thought": thought if turn.get("action") != "malformed" else "",
        "queries": queries,
        "urls": turn.get("urls") or [],
        "tool": turn.get("name"),
        "call": call_text(turn) if turn.get("action") == "tool" else None,
        "result": turn.get("result"),
        "answer": turn.get("answer"),
        "reason": turn.get("reason"),
        "text": text,
        "outcome": turn.get("outcome"),
        "sampled": turn.get("tokens"),
        "formed": turn.get("formed"),
        "hits": _hits(turn, len(queries)),
    }


def _hits(turn: Row, queries: int) -> list[Tree]:
    hits, counts = turn.get("hits") or [], turn.get("counts") or []
    owners: list[int | None] = [query for query, count in enumerate(counts) for _ in range(int(count))]
    if len(owners) != len(hits):
        owners = [0 if queries <= 1 else None for _ in hits]
    fields = ("id", "score", "gold", "title", "text")
    return [
        {**{name: hit.get(name) for name in fields}, "query": owner} for hit, owner in zip(hits, owners, strict=True)
    ]


TOKENIZER = "tokenizer.json"
CONTEXT = 4  # preceding tokens that may affect how a token decodes, for example its leading space
MAX_PIECES = 8  # more tokens than a character has bytes
INCOMPLETE = "\ufffd"
CACHED = 3  # tokenizers of large models take tens of megabytes


@dataclass(frozen=True, slots=True)
class TokenizerCache:
    fallback: ViewedFolder | None = None

    def load(self, folder: ViewedFolder) -> Tokenizer | None:
        """Load the tokenizer of the newest checkpoint, or the fallback; None if it is missing or unreadable."""
        entries = folder.entries("checkpoints")
        steps = sorted((int(match[1]) for each in entries if (match := STEP.fullmatch(each.name))), reverse=True)
        paths = [folder.find(f"checkpoints/step-{step}/{TOKENIZER}") for step in steps]
        if self.fallback is not None:
            paths.append(self.fallback.find(TOKENIZER))
        path = next((path for path in paths if path is not None), None)
        if path is None:
            return None
        stat = path.stat()
        return _read_tokenizer(str(path), stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=CACHED)
def _read_tokenizer(path: str, inode: int, changed: int) -> Tokenizer | None:  # noqa: ARG001  cache key
    try:
        return Tokenizer.from_file(path)
    except Exception:  # the library raises plain exceptions
        return None


def tokenizer_folder(folder: Path) -> ViewedFolder:
    """Return the folder given with --tokenizer; raises InputError if its tokenizer is missing or unreadable."""
    if not (folder / TOKENIZER).is_file():
        raise InputError(f"{folder} has no {TOKENIZER}; pass a model folder that has one with --tokenizer")
    try:
        Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises plain exceptions
        raise InputError(
            f"{folder / TOKENIZER} cannot be read ({error}); give another folder with --tokenizer"
        ) from error
    path = folder.resolve()
    return ViewedFolder(path.name, path, Root(path.name, path))


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds; a character split over several tokens belongs to the last token."""
    texts: list[str] = []
    first = 0
    for place in range(len(ids)):
        context = max(0, first - CONTEXT)
        before = decode(tokenizer, ids[context:first])
        added = decode(tokenizer, ids[context : place + 1])[len(before) :]
        if added.endswith(INCOMPLETE) and place - first < MAX_PIECES and place + 1 < len(ids):
            texts.append("")
            continue
        texts.append(added)
        first = place + 1
    return texts
