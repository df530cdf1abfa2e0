"""A trajectory in brief: the line that stands for it in a list."""

from collections.abc import Mapping
from typing import Any

from sleuth.records import Outcome
from sleuth.view.archive import At
from sleuth.view.line import Tree


def brief(at: At, row: Mapping[str, Any]) -> Tree:
    """What a list shows of a trajectory."""
    score = row.get("score") or {}
    parts, turns, ids = score.get("parts"), row.get("turns") or [], row.get("ids") or []
    return {
        "at": str(at),
        "step": at.step,
        "row": at.row,
        "group": row.get("group"),
        "sample": row.get("sample"),
        "question_id": row.get("question_id"),
        "data_source": row.get("data_source"),
        "question": row.get("question"),
        "golden_answers": row.get("golden_answers") or [],
        "answer": _answer(turns),
        "stop": row.get("stop"),
        "failure": row.get("failure"),
        "reward": score.get("total"),
        "em": (parts or {}).get("em"),
        "parts": parts,
        "searches": sum(each.get("action") == "search" and each.get("outcome") == Outcome.FOUND for each in turns),
        "turns": len(turns),
        "tokens": len(ids),
        "tokens_sampled": _sampled(row, turns),
        "broken": None,
    }


def unread(at: At, sentence: str) -> Tree:
    """What stands in a list in the place of a row that is no trajectory; `broken` says why it is none."""
    return {"at": str(at), "step": at.step, "row": at.row, "broken": sentence}


def _answer(turns: list[Tree]) -> str | None:
    last = turns[-1] if turns else {}
    answer = last.get("answer")
    return answer if last.get("action") == "answer" and isinstance(answer, str) else None


def _sampled(row: Mapping[str, Any], turns: list[Tree]) -> int | None:
    """Tokens of the model's own; of an episode without ids those its server counted, None where it counted none."""
    if row.get("ids"):
        return sum(int(count) for origin, count in row.get("origin") or () if origin == "sampled")
    return sum(int(each.get("tokens") or 0) for each in turns) or None
