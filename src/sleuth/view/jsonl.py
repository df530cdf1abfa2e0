"""JSON Lines reader with size limits, partial parsing and incremental reads.

Most of a trajectory row is token ids. Lists and filters need only the fields around the ids, which are located by keys
that no text can contain: inside a JSON string every quote is escaped.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

from sleuth.runs.trajectory import FullRow, InvalidRow, RowHeader, RowText, unsupported_version, validate_row

Tree = dict[str, Any]

MAX_ROW = 1 << 25  # bytes
MAX_NESTING = 64
CHECKED = 512  # number of bytes before a position that are covered by its checksum
_NUMBERS, _SEGMENTS, _TURNS, _STOP = b',"weights_versions":', b',"segments":[', b',"turns":', b',"stop":"'
_PARENT = b'"parent":'  # once in each segment


class Line(NamedTuple):
    """A line: up to MAX_ROW + 1 bytes of text, its full size, and whether it ends with a newline."""

    text: bytes
    size: int
    ended: bool


@dataclass(frozen=True, slots=True)
class FilePosition:
    """End of the part of a file read so far, with a checksum of the bytes before it."""

    end: int = 0
    check: int = 0

    @classmethod
    def at(cls, file: BinaryIO, end: int) -> "FilePosition":
        file.seek(max(0, end - CHECKED))
        return cls(end, crc32(file.read(min(end, CHECKED))))

    def matches(self, file: BinaryIO) -> bool:
        """Whether the file content before the position is unchanged."""
        return FilePosition.at(file, self.end) == self and file.tell() == self.end


def next_line(file: BinaryIO) -> Line:
    """Read the next line, skipping the rest of one that exceeds MAX_ROW."""
    text = rest = file.readline(MAX_ROW + 1)
    size = len(text)
    while rest and not rest.endswith(b"\n"):
        rest = file.readline(1 << 20)
        size += len(rest)
    return Line(text, size, rest.endswith(b"\n"))


def complete_lines(file: BinaryIO, start: int) -> Iterator[tuple[int, Line]]:
    file.seek(start)
    while (line := next_line(file)).ended:  # otherwise it is still being written
        yield start, line
        start += line.size


def parse_json(text: bytes) -> Any:
    """Parse one line; raises InvalidRow if it is too long, too deeply nested or not JSON."""
    if len(text) > MAX_ROW:
        raise InvalidRow(f"it exceeds the limit of {MAX_ROW:,} bytes per row")
    try:
        return check_nesting(json.loads(text.decode("utf-8", "surrogatepass")))
    except json.JSONDecodeError as error:
        problem = f"it is not JSON ({error.msg} at character {error.pos})" if text else "the file ends before it"
        raise InvalidRow(problem) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRow(f"it is not JSON ({error})") from error


def check_nesting(value: Any) -> Any:
    """Return the value; raises ValueError if it is nested deeper than MAX_NESTING."""
    level: list[Any] = [[value]]
    for _ in range(MAX_NESTING):
        inside = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_NESTING} levels")


def parse_trajectory(line: bytes) -> Tree:
    """Parse and validate a whole trajectory row; raises InvalidRow if it is invalid."""
    row: Tree = parse_json(line)
    validate_row(FullRow, row)
    if problem := unsupported_version(row):
        raise InvalidRow(problem)
    return row


def parse_header(line: bytes) -> RowHeader:
    return validate_row(RowHeader, _without_numbers(line, _STOP, "question_id"))


def contains_text(line: bytes, needle: str) -> bool:
    """Whether the question, golden answers or model output contain a lower-case text."""
    numbers, turns = _start_of_numbers(line), line.find(_TURNS)
    if needle.isascii() and 0 < numbers < turns:
        # Cheap pre-check without false negatives: ASCII text is stored verbatim except for escapes.
        encoded = json.dumps(needle)[1:-1].encode()
        if encoded not in line[:numbers].lower() and encoded not in line[turns:].lower():
            return False
    try:
        row = _without_numbers(line, _TURNS, "turns")
        validate_row(RowText, row)
    except InvalidRow:  # shown in the unfiltered list
        return False
    texts = [row.get("question"), *(row.get("golden_answers") or ())]
    for turn in row.get("turns") or ():
        texts += [turn.get(name) for name in ("text", "query", "answer", "reason")]
        texts += [*(turn.get("queries") or ()), *(turn.get("urls") or ())]
    return any(needle in text.lower() for text in texts if isinstance(text, str))


def _without_numbers(line: bytes, tail: bytes, needed: str) -> Any:
    """Parse a line without its token arrays, which end at `tail`; if they cannot be located, parse the whole line."""
    numbers = _start_of_numbers(line)
    end = line.rfind(tail) if tail is _STOP else line.find(tail)
    segmented = line.startswith(_SEGMENTS, numbers)
    if 0 < numbers < end and (segmented or line.find(_NUMBERS, numbers + 1) < 0):
        try:
            row = parse_json(line[:numbers] + b"}") | parse_json(b"{" + line[end + 1 :])
        except InvalidRow:  # written by another program with a different key order
            return parse_json(line)
        if needed in row:
            if segmented:
                row["segments"] = [{}] * line.count(_PARENT, numbers, end)
            return row
    return parse_json(line)


def _start_of_numbers(line: bytes) -> int:
    segments, numbers = line.find(_SEGMENTS), line.find(_NUMBERS)
    return segments if 0 < segments < numbers else numbers
