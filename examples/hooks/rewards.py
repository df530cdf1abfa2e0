"""Reward functions: a number, parts for the metrics, one reward per turn, and an async judge."""

import asyncio
from urllib.request import urlopen

from sleuth.records import Question, Score, Trajectory
from sleuth.reward.answers import cover_em, exact_match


def brief(question: Question, trajectory: Trajectory) -> Score:
    """Exact match minus a small cost per search; both appear in the metrics and the viewer."""
    right = exact_match(trajectory.answer, question.golden_answers)
    cost = 0.05 * trajectory.searches
    return Score(right - cost, {"right": right, "search_cost": cost})


def evidence(question: Question, trajectory: Trajectory) -> Score:
    """Exact match, and 0.2 for the first turn whose search shows a gold answer."""
    turns = [0.0] * len(trajectory.turns)
    for place, turn in enumerate(trajectory.turns):
        if any(cover_em(hit.passage.contents, question.golden_answers) for hit in turn.hits):
            turns[place] = 0.2
            break
    return Score(exact_match(trajectory.answer, question.golden_answers), {}, turns=tuple(turns))


async def judged(question: Question, trajectory: Trajectory) -> float:
    """A verdict from a service: calls run concurrently, within reward.concurrency and reward.rate."""
    url = f"http://127.0.0.1:8009/judge?answer={trajectory.answer or ''}"
    return float(await asyncio.to_thread(lambda: urlopen(url).read()))
