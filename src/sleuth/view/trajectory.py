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
from sleuth.runs.trajectory import InvalidRow
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
Spans = list[tuple[int, int]] | None


def full_trajectory(files: TrajectoryFiles, at: TrajectoryId, tokenizer: Tokenizer | None, tokens: bool = True) -> Tree:
    """Return everything recorded about a trajectory; `missing` explains what is unavailable."""
    row = files.row(at)
    log = _token_log(files, at)
    spans = turn_spans(row)
    columns = token_columns(row, log, spans, tokenizer)
    missing = {name: text for name, text in MISSING.items() if columns.get(name, 0) is None}
    turns, ids, origin = _turns(row, spans, tokenizer), row.get("ids") or [], columns["origin"]
    first = origin.index("sampled") if "sampled" in origin else len(ids)
    if any(hit["text"] is None for turn in turns for hit in turn["hits"]):
        missing["documents"] = MISSING["documents"]
    return {
        **brief(at, row),
        "tokens_all": len(ids),
        "advantage": log["advantage"] if isinstance(log.get("advantage"), float | int) else None,
        "score": row.get("score"),
        "seconds": row.get("seconds"),
        "prompt": decode(tokenizer, ids[:first]) if tokenizer is not None and ids else None,
        "turns": turns,
        "tokens": columns if tokens else None,
        "missing": missing,
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


def _origins(row: Row) -> list[str]:
    """Return the origin of each token: given to the model or sampled from it."""
    runs = row.get("origin") or ()
    described, count = sum(int(length) for _, length in runs), len(row.get("ids") or ())
    if described != count:
        raise HttpProblem(503, f"the origins of the trajectory cover {described} tokens, but it has {count}")
    return [str(origin) for origin, length in runs for _ in range(int(length))]


def turn_spans(row: Row) -> Spans:
    """Return the start and end position of each turn's tokens; None if the counts do not add up."""
    sampled = [place for place, origin in enumerate(_origins(row)) if origin == "sampled"]
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


def token_columns(row: Row, log: Tree, spans: Spans, tokenizer: Tokenizer | None) -> Tree:
    """Return lists with one entry per token, null for given tokens; a column that was not recorded is None."""
    ids, origin = [int(each) for each in row.get("ids") or ()], _origins(row)
    turn: list[int | None] = [None] * len(ids)
    for number, (first, end) in enumerate(spans or ()):
        turn[first:end] = [number if each == "sampled" else None for each in origin[first:end]]
    return {
        "ids": ids,
        "text": token_texts(tokenizer, ids) if tokenizer is not None else None,
        "origin": origin,
        "logprob": _aligned(row.get("logprobs"), origin),
        "version": _aligned(row.get("weights_versions"), origin),
        "ratio": _aligned(log.get("ratio"), origin),
        "advantage": _aligned(log.get("advantage"), origin),
        "weight": _aligned(log.get("weight"), origin),
        "turn": turn,
    }


def _aligned(recorded: object, origin: Sequence[str]) -> list[float | None] | None:
    """Expand to all tokens a single value, one value per sampled token, or one per token after the prompt."""
    sampled = [place for place, each in enumerate(origin) if each == "sampled"]
    if not sampled or recorded is None:
        return None
    if isinstance(recorded, int | float):
        recorded = [recorded] * len(sampled)
    values = list(recorded) if isinstance(recorded, list) else []
    # If retrieved text is trained on as well, every token after the prompt has a value.
    places = sampled if len(values) == len(sampled) else list(range(sampled[0], len(origin)))
    if len(values) != len(places):
        return None
    aligned: list[float | None] = [None] * len(origin)
    for place, value in zip(places, values, strict=True):
        aligned[place] = value
    return aligned


def _turns(row: Row, spans: Spans, tokenizer: Tokenizer | None) -> list[Tree]:
    turns, ids = row.get("turns") or [], row.get("ids") or []
    rewards = (row.get("score") or {}).get("turns") or []
    if len(rewards) != len(turns):  # the reward function gave none
        rewards = [None] * len(turns)
    ends = [*(first for first, _ in (spans or [])[1:]), len(ids)]
    found = []
    for number, (turn, reward) in enumerate(zip(turns, rewards, strict=True)):
        span, shown = spans[number] if spans else None, None
        if span and tokenizer is not None and span[1] < ends[number]:
            shown = decode(tokenizer, ids[span[1] : ends[number]])
        found.append({**_turn(turn), "reward": reward, "span": list(span) if span else None, "shown": shown})
    return found


def _turn(turn: Row) -> Tree:
    text = str(turn.get("text") or "")
    queries = turn.get("queries") or ([turn["query"]] if turn.get("query") is not None else [])
    before = text.partition(f"<{turn['name']}>")[0] if turn.get("action") == "tool" else text
    tags = list(_ACTION_TAG.finditer(before))
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
