"""An evaluation as Markdown for people and as JSON for programs."""

import json

from sleuth.evaluate.suite import Evaluation
from sleuth.records import Estimate

_HEADER = ("Kind", "Questions", "EM", "F1", "Searches", "Unusable")


def markdown(evaluation: Evaluation, title: str) -> str:
    """A heading and a table by kind, the last row over all questions."""
    parts = {**evaluation.by_hops(), "all": evaluation}
    lines = [_line(_HEADER), _line(("---", *["---:"] * (len(_HEADER) - 1)))]
    lines += [_line(_cells(label, part)) for label, part in parts.items()]
    note = "Brackets hold 95% intervals. Unusable questions were lost to a failed search or engine and are in no mean."
    return f"# {title}\n\n" + "\n".join(lines) + f"\n\n{note}\n"


def json_text(evaluation: Evaluation) -> str:
    """The evaluation as one JSON document."""
    return json.dumps(evaluation.as_json(), indent=2, allow_nan=False) + "\n"


def _cells(label: str, part: Evaluation) -> tuple[str, ...]:
    means = [_mean(mean) for mean in (part.em, part.f1, part.searches)] if part.scores() else ["–"] * 3
    return (label, str(len(part.asked)), *means, str(part.unusable))


def _mean(mean: Estimate) -> str:
    return f"{mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]"


def _line(cells: tuple[str, ...]) -> str:
    # A data source may hold any character; a bar would end its cell.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
