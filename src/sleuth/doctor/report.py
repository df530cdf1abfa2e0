"""What was found, as Markdown for people and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from sleuth.doctor.environment import Finding, Verdict
from sleuth.train.parity import Parity

_HEADER = ("What", "Found", "Verdict", "Remedy")


def markdown(title: str, findings: Sequence[Finding]) -> str:
    """A heading and a row for each finding."""
    rows = [(each.what, each.found, each.verdict.value, each.remedy) for each in findings]
    lines = [_line(_HEADER), _line(("---",) * len(_HEADER)), *map(_line, rows)]
    return f"# {title}\n\n" + "\n".join(lines) + "\n"


def json_text(findings: Sequence[Finding], parities: Sequence[Parity]) -> str:
    """Every row, and the figures of every parity, as one JSON document."""
    content = {
        "verdict": worst(findings).value,
        "findings": [asdict(each) for each in findings],
        "parity": [each.as_json() for each in parities],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict over all rows."""
    order = list(Verdict)
    return max((each.verdict for each in findings), key=order.index, default=Verdict.OK)


def _line(cells: tuple[str, ...]) -> str:
    # A message of another program may hold any character; a bar would end its cell.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
