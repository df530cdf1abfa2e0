"""A line of a trajectories file, read as far as it is needed.

Most of a line are the numbers of its tokens. What a list or a filter needs stands before and after them, and is found
by names that no text can hold: inside a JSON string every quote has a backslash before it.
"""

import json
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from sleuth.runs.trajectory import FullRow, InvalidRow, RowHeader, RowText, unsupported_version, validate_row

Tree = dict[str, Any]

LONGEST = 1 << 25  # bytes of a row that are read
DEEPEST = 64  # lists and objects around a value
NUMBERS, TURNS, END = b',"weights_versions":', b',"turns":', b',"stop":"'


class Line(NamedTuple):
    """A line of a file: its beginning, its whole size, and whether it is ended."""

    text: bytes
    size: int
    ended: bool


def next_line(file: BinaryIO) -> Line:
    """The next line of a file; of one that is longer than a row may be, only so much that this can be told."""
    text = rest = file.readline(LONGEST + 1)
    size = len(text)
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(1 << 20)
        size += len(rest)
    return Line(text, size, rest.endswith(b"\n"))


def shallow(value: Any) -> Any:
    """The same value; one that is nested deeper than a page can show is a ValueError."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST):
        inside = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


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
    """The few fields of a line that filters ask for; a line that is no trajectory raises `Broken`."""
    head = validate_row(RowHeader, _ends(line, END, "question_id"))
    score = head.score
    parts = (score.parts if score is not None else None) or {}
    return Told(
        source=head.data_source or "",
        question_id=head.question_id,
        question=head.question or "",
        group=head.group,
        sample=head.sample,
        stop=head.stop.value,
        reward=score.total if score is not None else None,
        em=parts.get("em"),
        searches=parts.get("searches"),
    )


def says(line: bytes, needle: str) -> bool:
    """Whether the question, the right answers or anything the model wrote has this text; `needle` is in lower case."""
    numbers, turns = line.find(NUMBERS), line.find(TURNS)
    if needle.isascii() and 0 < numbers < turns:
        # Cheap, and it never misses: text of ASCII stands in JSON as it is, but for its escapes.
        wanted = json.dumps(needle)[1:-1].encode()
        if wanted not in line[:numbers].lower() and wanted not in line[turns:].lower():
            return False
    try:
        row = _ends(line, TURNS, "turns")
        validate_row(RowText, row)
    except InvalidRow:  # what it says is not known; the list without a text shows it, and why
        return False
    return _has(row, needle)


def parsed(line: bytes) -> Tree:
    """The whole line; one that is no trajectory raises `Broken`."""
    row: Tree = read(line)
    validate_row(FullRow, row)
    if problem := unsupported_version(row):
        raise InvalidRow(problem)
    return row


def _ends(line: bytes, tail: bytes, needed: str) -> Any:
    """A line without the numbers of its tokens, which end at `tail`; all of it where they are not found once in it."""
    numbers = line.find(NUMBERS)
    end = line.rfind(tail) if tail is END else line.find(tail)
    if 0 < numbers < end and line.find(NUMBERS, numbers + 1) < 0:
        try:
            row = read(line[:numbers] + b"}") | read(b"{" + line[end + 1 :])
        except InvalidRow:  # written by another program, perhaps: its names stood elsewhere than ours do
            return read(line)
        if needed in row:
            return row
    return read(line)


def read(text: bytes) -> Any:
    """The JSON of a line; `Broken` says what is wrong with it."""
    if len(text) > LONGEST:
        raise InvalidRow(f"it has more than the {LONGEST:,} bytes that are read of a row")
    try:
        return shallow(json.loads(text.decode("utf-8", "surrogatepass")))
    except json.JSONDecodeError as error:
        raise InvalidRow(
            f"it is no JSON ({error.msg} at character {error.pos})" if text else "the file ends before it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRow(f"it is no JSON ({error})") from error


def _has(row: Tree, needle: str) -> bool:
    said = [row.get("question"), *(row.get("golden_answers") or ())]
    for turn in row.get("turns") or ():
        said += [turn.get("text"), turn.get("query"), turn.get("answer"), turn.get("reason")]
        said += [*(turn.get("queries") or ()), *(turn.get("urls") or ())]
    return any(needle in each.lower() for each in said if isinstance(each, str))
