"""A line of a trajectories file, read as far as it is needed.

Most of a line are the numbers of its tokens. What a list or a filter needs stands before and after them, and is found
by names that no text can hold: inside a JSON string every quote has a backslash before it.
"""

import json
from dataclasses import dataclass
from typing import Any

from sleuth.retrieval.service.limits import Refused

Tree = dict[str, Any]

NUMBERS, TURNS, END = b',"weights_versions":', b',"turns":', b',"stop":"'


@dataclass(frozen=True, slots=True)
class Told:
    """What filters ask of a trajectory; None where it is not recorded."""

    source: str
    question_id: str
    question: str
    group: int
    sample: int
    stop: str
    reward: float | None
    em: float | None
    searches: float | None


def told(line: bytes) -> Told:
    """The few fields of a line that filters ask for."""
    numbers, end = line.find(NUMBERS), line.rfind(END)
    if 0 < numbers < end:
        row = json.loads(line[:numbers] + b"}") | json.loads(b"{" + line[end + 1 :])
        if "question_id" not in row:
            row = json.loads(line)
    else:
        row = json.loads(line)
    score = row.get("score") or {}
    parts = score.get("parts") or {}
    return Told(
        source=str(row.get("data_source", "")),
        question_id=str(row["question_id"]),
        question=str(row.get("question", "")),
        group=int(row["group"]),
        sample=int(row.get("sample", 0)),
        stop=str(row["stop"]),
        reward=score.get("total"),
        em=parts.get("em"),
        searches=parts.get("searches"),
    )


def says(line: bytes, needle: str, at: object) -> bool:
    """Whether the question, the right answers or anything the model wrote has this text; `needle` is in lower case."""
    numbers, turns = line.find(NUMBERS), line.find(TURNS)
    if not 0 < numbers < turns:
        return _has(parsed(line, at), needle)
    head, tail = line[:numbers], line[turns + 1 :]
    if needle.isascii():
        # Cheap, and it never misses: text of ASCII stands in JSON as it is, but for its escapes.
        wanted = json.dumps(needle)[1:-1].encode()
        if wanted not in head.lower() and wanted not in tail.lower():
            return False
    return _has({**_read(head + b"}", at), **_read(b"{" + tail, at)}, needle)


def parsed(line: bytes, at: object) -> Tree:
    """The whole line; `at` is the name of its trajectory, for whoever has to mend it."""
    row = _read(line, at)
    if not isinstance(row, dict) or "question_id" not in row or "stop" not in row:
        raise Refused(503, f"the line of trajectory {at} is none: it has no question_id or no stop; mend or remove it")
    return row


def _read(text: bytes, at: object) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(503, f"the line of trajectory {at} is no JSON ({error}); mend or remove it") from error


def _has(row: Tree, needle: str) -> bool:
    said = [row.get("question"), *(row.get("golden_answers") or ())]
    for turn in row.get("turns") or ():
        said += [turn.get("text"), turn.get("query"), turn.get("answer"), turn.get("reason")]
        said += [*(turn.get("queries") or ()), *(turn.get("urls") or ())]
    return any(needle in each.lower() for each in said if isinstance(each, str))
