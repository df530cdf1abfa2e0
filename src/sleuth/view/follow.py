"""The record of a run in increments: what was written since the last time, found by its place in the files."""

from dataclasses import dataclass
from typing import Any, BinaryIO
from zlib import crc32

from sleuth.http.responses import HttpProblem
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.library import Tree, standing
from sleuth.view.line import next_line, read
from sleuth.view.roots import Shown

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
MOST_ROWS = 2000
SEEN = 512  # bytes before a place by which it is known again


@dataclass(frozen=True, slots=True)
class Place:
    """How far a file was read: the end of a line, and a check over what stands before it."""

    end: int = 0
    check: int = 0

    @classmethod
    def at(cls, file: BinaryIO, end: int) -> "Place":
        file.seek(max(0, end - SEEN))
        return cls(end, crc32(file.read(min(end, SEEN))))

    def holds(self, file: BinaryIO) -> bool:
        """Whether the file still is what was read, and perhaps more."""
        return Place.at(file, self.end) == self and file.tell() == self.end


def increment(shown: Shown, cursor: str | None) -> Tree:
    """The metrics and events since a cursor; all of them, with `reset`, where the run has rewritten its record."""
    metrics, events = _places(cursor)
    known = cursor is not None and _unchanged(shown, METRICS, metrics) and _unchanged(shown, EVENTS, events)
    if not known:
        metrics = events = Place()
    rows, metrics_end = _rows(shown, METRICS, metrics)
    said, events_end = _rows(shown, EVENTS, events)
    written = standing(shown, "run")
    return {
        "cursor": f"{metrics_end.end}.{metrics_end.check}.{events_end.end}.{events_end.check}",
        "reset": not known,
        "more": MOST_ROWS in (len(rows), len(said)),
        "state": written["state"],
        "age_seconds": written["age_seconds"],
        "columns": columns(rows),
        "events": said,
    }


def columns(rows: list[Tree]) -> dict[str, list[Any]]:
    """Rows turned into columns of equal length, null where a row has not the name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _places(cursor: str | None) -> tuple[Place, Place]:
    if cursor is None:
        return Place(), Place()
    parts = cursor.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise HttpProblem(400, f"cursor is {cursor[:80]!r}; expected the one of the last answer, or none")
    metrics, metrics_check, events, events_check = map(int, parts)
    return Place(metrics, metrics_check), Place(events, events_check)


def _unchanged(shown: Shown, name: str, place: Place) -> bool:
    if shown.there(name) is None:
        return place.end == 0
    with shown.open(name) as file:
        return place.holds(file)


def _rows(shown: Shown, name: str, place: Place) -> tuple[list[Tree], Place]:
    """Whole lines from a place on, and the place after them; a line still being written is left for the next time."""
    if shown.there(name) is None:
        return [], place
    rows: list[Tree] = []
    with shown.open(name) as file:
        end = file.seek(place.end)
        while len(rows) < MOST_ROWS and (line := next_line(file)).ended:
            end += line.size
            rows.append(_row(line.text, shown, name))
        return rows, Place.at(file, end)


def _row(line: bytes, shown: Shown, name: str) -> Tree:
    try:
        row = read(line)
    except InvalidRow as error:
        raise HttpProblem(503, f"{name} of {shown.id} has a line that cannot be read: {error}; remove it") from error
    return row if isinstance(row, dict) else {}
