"""A trajectory as a row: its tokens, its turns and what they were worth."""

from collections.abc import Mapping
from typing import Any

from sleuth.records import Access, Answer, Hit, Malformed, Question, Score, Search, Trajectory, Turn, run_lengths
from sleuth.runs.documents import FORMAT, Row

TITLE = 200  # letters of a passage's title that are kept; one without a title begins with its text


def row(trajectory: Trajectory, score: Score | None) -> Row:
    """A trajectory as a JSON row; `score` is None for an unusable one."""
    return {
        "version": FORMAT,
        "question_id": trajectory.question.id,
        "data_source": trajectory.question.data_source,
        "question": trajectory.question.question,
        "golden_answers": list(trajectory.question.golden_answers),
        "group": trajectory.group,
        "sample": trajectory.sample,
        "step": trajectory.step,
        "weights_versions": list(trajectory.versions),
        "ids": list(trajectory.ids),
        "origin": [list(run) for run in run_lengths(trajectory.sampled)],
        "logprobs": list(trajectory.logprobs),
        "turns": [_turn(turn, trajectory.question) for turn in trajectory.turns],
        "stop": trajectory.stop.value,
        "failure": trajectory.failure,
        "score": None if score is None else {"total": score.total, "parts": score.parts},
    }


def newer(row: Mapping[str, Any]) -> str | None:
    """Why a row cannot be read: its format is newer than this version knows; one without a version is of the first."""
    version = row.get("version", 1)
    if isinstance(version, int) and version > FORMAT:
        return f"it is of trajectory format {version}, and this version of Sleuth reads up to {FORMAT}; update Sleuth"
    return None


def _turn(turn: Turn, question: Question) -> Row:
    match turn.action:
        case Search((query,)):
            action: Row = {"action": "search", "query": query}
        case Search(queries):
            action = {"action": "search", "queries": list(queries)}
        case Access(urls):
            action = {"action": "access", "urls": list(urls)}
        case Answer(text):
            action = {"action": "answer", "answer": text}
        case Malformed(reason):
            action = {"action": "malformed", "reason": reason}
    if len(turn.counts) > 1:
        action["counts"] = list(turn.counts)
    hits = [_hit(hit, question) for hit in turn.hits]
    if turn.shown is not None:
        action["shown"] = turn.shown
    said: Row = {"tokens": turn.tokens, "text": turn.text, "formed": turn.formed}
    return {**action, "hits": hits, "outcome": turn.outcome.value, **said}


def _hit(hit: Hit, question: Question) -> Row:
    """Where the question does not name its supporting passages, nothing is said about gold."""
    gold: Row = {"gold": hit.passage.id in question.supporting_ids} if question.supporting_ids else {}
    return {"id": hit.passage.id, "title": hit.passage.title[:TITLE], "score": hit.score, **gold}
