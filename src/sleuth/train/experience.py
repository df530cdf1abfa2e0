"""Experience: the trained tokens of a trajectory, and the rows in which they are computed.

Suffixes: L tokens of a segment, S trained tokens of a trajectory, R trained tokens of a row.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sleuth.model.packing import TEMPERATURE, WEIGHT, Row
from sleuth.records import Segment, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Experience:
    """The trained tokens of a trajectory in the order of its segments, with columns of one value per token.

    `rows` are the sequences that contain the tokens, and `places` says which of the tokens each row scores. `turn_S` is
    the turn of each token, and `earlier` the sum of the rewards of the turns before all of them. `trained` tells which
    sampled tokens of the trajectory these are; None for all.
    """

    trajectory: Trajectory
    rows: tuple[Row, ...]
    places: tuple[Tensor, ...]
    turn_S: Tensor
    columns: Mapping[str, Tensor]
    trained: tuple[bool, ...] | None = None
    earlier: float = 0.0

    def __len__(self) -> int:
        return len(self.turn_S)

    @property
    def call_order(self) -> Tensor:
        """The indices of the tokens in the order of their turns; the segments of parallel calls are interleaved."""
        return self.turn_S.argsort(stable=True)

    def with_columns(self, **columns: Tensor) -> "Experience":
        return replace(self, columns={**self.columns, **columns})

    def join(self, values: Sequence[Tensor]) -> Tensor:
        """Combine the values of each row's tokens to one column."""
        if len(values) == 1:
            return values[0]
        joined_S = torch.empty(len(self))
        for place_R, value_R in zip(self.places, values, strict=True):
            joined_S[place_R] = value_R
        return joined_S


def experience_rows(experiences: Sequence[Experience]) -> list[Row]:
    """Return the rows of all experiences with their columns, numbered by trajectory; those of a tree are a family."""
    trees: dict[tuple[int, int], int] = {}
    return [
        replace(row, columns=_select(each, place_R), trajectory=number, family=_family(each.trajectory, trees))
        for number, each in enumerate(experiences)
        for row, place_R in zip(each.rows, each.places, strict=True)
    ]


def _family(trajectory: Trajectory, trees: dict[tuple[int, int], int]) -> int | None:
    branch = trajectory.branch
    return None if branch is None else trees.setdefault((trajectory.group, branch.tree), len(trees))


def _select(experience: Experience, place_R: Tensor) -> Mapping[str, Tensor]:
    if len(experience.rows) == 1:
        return experience.columns
    return {name: column_S[place_R] for name, column_S in experience.columns.items()}


def build_experiences(
    trajectories: Sequence[Trajectory], temperature: float, *, roles: Collection[str] = (), sampled_only: bool = True
) -> list[Experience]:
    """Collect the sampled tokens of these roles, or of all; without `sampled_only`, every token after the prompt.

    If some tokens were sampled at another temperature, a column has the temperature of each token.
    """
    own = {each for trajectory in trajectories for segment in trajectory.segments for each in segment.temperatures}
    several = not own <= {temperature}
    return [_build(each, roles, sampled_only, temperature if several else None) for each in trajectories]


def _build(trajectory: Trajectory, roles: Collection[str], sampled_only: bool, temperature: float | None) -> Experience:
    segments = trajectory.segments
    # numpy reads Python numbers several times faster than torch.
    origins = [np.array(segment.sampled, dtype=np.bool_) for segment in segments]
    # Retrieved text may be trained on as well, but not the prompt.
    masks = origins if sampled_only else [sampled_L.cumsum() > 0 for sampled_L in origins]
    trains = [not roles or segment.role in roles for segment in segments]
    kept = [index for index, mask_L in enumerate(masks) if trains[index] and mask_L.any()]
    positions = [masks[index].nonzero()[0] for index in kept]
    turns = _segment_turns(segments, origins)
    columns = {WEIGHT: torch.ones(sum(map(len, positions)))}
    if sampled_only:
        columns["rollout"] = torch.tensor([logprob for index in kept for logprob in segments[index].logprobs])
    if temperature is not None:
        own = [_temperatures(segment, origin, temperature) for segment, origin in zip(segments, origins, strict=True)]
        columns[TEMPERATURE] = _gather(own, kept, positions, np.float64)
    rows, places = _rows([np.array(segments[index].ids, dtype=np.int64) for index in kept], positions, len(segments))
    counts = [int(mask_L.sum()) for mask_L in masks]
    trained = None if all(trains) else tuple(np.repeat(trains, counts).tolist())
    return Experience(trajectory, rows, places, _gather(turns, kept, positions, np.int64), columns, trained)


def _gather(
    values: Sequence[NDArray[Any]], kept: Sequence[int], positions: Sequence[NDArray[np.int64]], dtype: type
) -> Tensor:
    """Concatenate the values of the kept segments at their scored positions."""
    parts = [values[index][positions_S] for index, positions_S in zip(kept, positions, strict=True)]
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *parts]))


def _segment_turns(segments: Sequence[Segment], origins: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.int64]]:
    """Return the turn of each token; a given token after the prompt has the turn of the sampled token before it."""
    turns: list[NDArray[np.int64]] = []
    following = 0  # without calls, each run of sampled tokens is the next turn
    for segment, sampled_L in zip(segments, origins, strict=True):
        if segment.calls and sampled_L.any():
            turn, count = np.array(segment.calls, dtype=np.int64).T
            turn_L = turn.repeat(count)[sampled_L.cumsum() - 1]
        else:
            begins_L = np.diff(sampled_L, prepend=False) & sampled_L
            turn_L = following - 1 + begins_L.cumsum()
        following = int(turn_L.max(initial=following - 1)) + 1
        turns.append(turn_L)
    return turns


def _temperatures(segment: Segment, sampled_L: NDArray[np.bool_], default: float) -> NDArray[np.float64]:
    temperature_L = np.full(len(sampled_L), default)
    if segment.temperatures:
        temperature_L[sampled_L] = segment.temperatures
    return temperature_L


def _rows(
    ids: Sequence[NDArray[np.int64]], positions: Sequence[NDArray[np.int64]], segments: int
) -> tuple[tuple[Row, ...], tuple[Tensor, ...]]:
    """Make a row of each segment; a segment that is a prefix of another one is scored in the row of that one."""
    if segments > 1:  # what follows the last scored token is not needed
        ids = [ids_L[: positions_S[-1] + 1] for ids_L, positions_S in zip(ids, positions, strict=True)]
    hosts: list[tuple[NDArray[np.int64], list[int]]] = []
    for index in sorted(range(len(ids)), key=lambda index: -len(ids[index])):
        fits = (members for ids_L, members in hosts if np.array_equal(ids_L[: len(ids[index])], ids[index]))
        if (members := next(fits, None)) is not None:
            members.append(index)
        else:
            hosts.append((ids[index], [index]))
    starts = np.cumsum([0, *map(len, positions)])
    rows, places = [], []
    for ids_L, members in hosts:
        scored = sorted(members)
        positions_R = np.concatenate([positions[index] for index in scored])
        place_R = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in scored])
        rows.append(Row(torch.from_numpy(ids_L), torch.from_numpy(positions_R), {}))
        places.append(torch.from_numpy(place_R))
    return tuple(rows), tuple(places)
