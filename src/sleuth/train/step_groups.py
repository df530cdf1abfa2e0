"""Step groups (GiGPO, arXiv 2505.10978) of searching agents: turns that start after the same passages.

The state before a turn is the question and everything that tools have returned so far, in order. The last observation
alone would equate states of different knowledge; the text of earlier turns would make all states different.

Suffixes: N trajectories, M turns of all trajectories, S trained tokens of one trajectory.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from sleuth.algorithms.advantage import ADVANTAGES
from sleuth.algorithms.step_groups import step_advantages
from sleuth.records import Outcome, Trajectory
from sleuth.train.experience import Experience
from sleuth.train.metrics import Metrics


def attach_step_advantages(
    experiences: Sequence[Experience], returns: Sequence[Tensor], groups_N: Tensor, advantage: str, weight: float
) -> tuple[list[Experience], Metrics]:
    """Add the weighted advantage of each turn within its state to the column advantage.

    `returns` are the rewards-to-go of the tokens; all tokens of a turn have the same.
    """
    numbers: dict[Hashable, int] = {}
    states: list[int] = []
    values: list[Tensor] = []
    for experience, group, return_S in zip(experiences, groups_N.tolist(), returns, strict=True):
        known = observed_states(experience.trajectory)
        for turn in experience.turn_S.unique().tolist():
            states.append(numbers.setdefault((group, known[turn]), len(numbers)))
            values.append(return_S[experience.turn_S == turn][0])
    if not states:
        return list(experiences), {}
    states_M = torch.tensor(states)
    found = iter(step_advantages(torch.stack(values), states_M, ADVANTAGES[advantage]))
    attached = []
    for experience in experiences:
        advantage_S = experience.columns["advantage"].clone()
        for turn in experience.turn_S.unique().tolist():
            advantage_S[experience.turn_S == turn] += weight * next(found)
        attached.append(experience.with_columns(advantage=advantage_S))
    count_G = states_M.bincount()
    return attached, {
        "step_groups/size": len(states) / len(numbers),
        "step_groups/compared": float((count_G[states_M] > 1).double().mean()),
    }


def observed_states(trajectory: Trajectory) -> list[Hashable]:
    """Return what tools had returned before each turn: the ids of the passages, or the text of another tool."""
    states: list[tuple[Hashable, ...]] = [()]
    for turn in trajectory.turns:
        seen = (tuple(hit.passage.id for hit in turn.hits), turn.result)
        returned = turn.outcome in (Outcome.FOUND, Outcome.RETURNED)
        states.append((*states[-1], seen) if returned else states[-1])
    return list(states)
