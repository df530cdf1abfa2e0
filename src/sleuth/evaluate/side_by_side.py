"""Two evaluations question by question, ready for JSON: the figures of a comparison, and every pair it is made of."""

from pathlib import Path
from typing import Any

from sleuth.evaluate import marks
from sleuth.evaluate.marks import Mark
from sleuth.evaluate.pairing import Pair, as_json, paired


def side_by_side(first: Path, second: Path, common: bool) -> dict[str, Any]:
    """The comparison of two finished evaluations; with `common` of the questions that both have."""
    pairing = paired(marks.read(first), marks.read(second), common=common)
    figures = as_json(pairing, "em")
    del figures["changed"]  # follows from the pairs, for any measure
    return {**figures, "pairs": [_pair(pair) for pair in pairing.pairs]}


def _pair(pair: Pair) -> dict[str, Any]:
    question = pair.first.question
    return {
        "id": question.id,
        "data_source": question.data_source,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "first": _side(pair.first),
        "second": _side(pair.second),
    }


def _side(mark: Mark) -> dict[str, Any]:
    return {"answer": mark.answer, "values": mark.values, "stop": mark.stop}
