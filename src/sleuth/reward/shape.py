"""The form of an episode, read from sampled text alone: documents have no say in it."""

from sleuth.records import Outcome, Trajectory


def valid(trajectory: Trajectory) -> bool:
    """True where every turn has the form its protocol asks for, all but the last found something, and that answers.

    With tags: think, (search, information, think)*, answer with only white space between and nothing after.
    """
    if not trajectory.turns:
        return False
    *searching, last = trajectory.turns
    # Only a search that was carried out is followed by information; a refused or corrected one is not.
    searched = all(turn.formed and turn.outcome is Outcome.FOUND for turn in searching)
    return searched and last.formed and last.outcome is Outcome.ANSWERED


def answer_tags(trajectory: Trajectory) -> int:
    """How many times the model opened an answer."""
    return sum(turn.text.count("<answer>") for turn in trajectory.turns)
