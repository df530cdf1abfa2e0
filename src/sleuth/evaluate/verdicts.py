"""The verdicts of judges, kept beside the answers: none is paid for twice, and none is taken for another judge's."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sleuth.credentials import redacted_tree
from sleuth.errors import InputError
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.json_files import read_rows

FILE = "judge.jsonl"


def known(folder: Path, judge: Mapping[str, str]) -> dict[int, float]:
    """What this judge said of each place; half a line at the end is none."""
    file = folder / FILE
    found: dict[int, float] = {}
    for number, row in enumerate(read_rows(file) if file.exists() else (), start=1):
        place, verdict = row.get("group"), row.get("verdict")
        if type(place) is not int or verdict not in (0.0, 1.0):
            raise InputError(f"{file}, line {number} holds no verdict of 1 or 0; take the line out, or the whole file")
        row = redacted_tree(row)  # an older version wrote addresses with their credentials
        if all(row.get(name) == value for name, value in judge.items()):
            found[place] = float(verdict)
    return found


@contextmanager
def writing(folder: Path, judge: Mapping[str, str]) -> Iterator[Callable[[int, float], None]]:
    """Takes verdicts by place; each is out of this process when the call returns. What a kill left half is cut off."""
    file = folder / FILE
    with explain_write_errors(file), file.open("ab") as opened:
        opened.truncate(_whole(file))

        def write(place: int, verdict: float) -> None:
            opened.write(json.dumps({"group": place, **judge, "verdict": verdict}).encode() + b"\n")
            opened.flush()

        yield write


def _whole(file: Path) -> int:
    """Bytes of whole lines."""
    with file.open("rb") as opened:
        return sum(len(line) for line in opened if line.endswith(b"\n"))
