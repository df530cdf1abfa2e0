"""The form of an episode, read from sampled text alone: documents have no say in it."""

import re

from sleuth.records import Outcome, Trajectory, Turn

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")


def valid(trajectory: Trajectory) -> bool:
    """True for think, (search, information, think)*, answer with only white space between and nothing after."""
    if not trajectory.turns:
        return False
    *searching, last = trajectory.turns
    # Only a search that was carried out is followed by information; a refused or corrected one is not.
    searched = all(_has_form(turn, "search", Outcome.FOUND) for turn in searching)
    return searched and _has_form(last, "answer", Outcome.ANSWERED)


def answer_tags(trajectory: Trajectory) -> int:
    """How many times the model opened an answer."""
    return sum(turn.text.count("<answer>") for turn in trajectory.turns)


def _has_form(turn: Turn, tag: str, outcome: Outcome) -> bool:
    """True when the turn is one thought and one element of that tag, and had that outcome."""
    pieces = _TAG.split(turn.text)  # outside, <think>, thought, </think>, outside, <tag>, content, </tag>, outside
    tags, outside = pieces[1::2], pieces[::4]
    return (
        turn.outcome is outcome
        and tags == ["<think>", "</think>", f"<{tag}>", f"</{tag}>"]
        and not "".join(outside).strip()
    )
