"""Rollout trees (Tree-GRPO, arXiv 2509.21240): episodes that continue from the turns of other episodes.

A node is the state before a turn. Each round draws nodes of every tree at random and continues each of them to an end.
The tokens of a branch's prefix are those that were sampled; they are never encoded again.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, islice

from sleuth.agent.task import Prefix, Task
from sleuth.config.train import TreeConfig
from sleuth.records import Branch, Trajectory

Run = Callable[[Sequence[Task]], Awaitable[list[Trajectory]]]
Node = tuple[Trajectory, int, int]  # an attempt, the turn before which it is cut, and the number of tokens before it


async def sample_trees(run: Run, trunks: Sequence[Task], tree: TreeConfig) -> list[Trajectory]:
    """Run the first episode of each tree, then the branches of each round; ordered by group and sample."""
    trajectories = await run(trunks)
    for number in range(tree.rounds):
        grown: dict[tuple[int, int], list[Trajectory]] = {}
        for each in trajectories:
            assert each.branch is not None  # noqa: S101  every task has one
            grown.setdefault((each.group, each.branch.tree), []).append(each)
        branches = [
            task
            for trunk in trunks
            for task in _branches(trunk, grown[trunk.group, trunk.sample], tree, tree.trees * number + trunk.sample)
        ]
        trajectories += await run(branches)
    return sorted(trajectories, key=lambda each: (each.group, each.sample))


def _branches(trunk: Task, attempts: Sequence[Trajectory], tree: TreeConfig, place: int) -> Iterator[Task]:
    """Make the tasks of a round in one tree; `place` counts the trees of this and earlier rounds."""
    drawn = draw_nodes(attempts, tree.branches, f"{trunk.seed}/{trunk.step}/{trunk.group}/{trunk.question.id}/{place}")
    for sample, (attempt, turn, shared) in enumerate(drawn, tree.trees + place * tree.branches):
        branch = Branch(trunk.sample, attempt.sample, shared)
        prefix = Prefix(attempt.ids[:shared], attempt.turns[:turn])
        yield replace(trunk, sample=sample, branch=branch, prefix=prefix)


def draw_nodes(attempts: Sequence[Trajectory], count: int, seed: str) -> list[Node]:
    """Draw nodes of a tree, all different as long as there are enough; none if no attempt is usable.

    The state before the first turn is a node only of a tree that has no other: a branch from it shares just the prompt.
    """
    usable = [each for each in attempts if each.stop.usable and each.segments]
    inner = [node for each in usable for node in _nodes(each) if node[1] > 0]
    nodes = inner or [node for each in usable for node in _nodes(each)]
    random.Random(seed).shuffle(nodes)
    return list(islice(cycle(nodes), count))


def _nodes(attempt: Trajectory) -> Iterator[Node]:
    """Yield the states before the attempt's own turns; that before a branch's first turn belongs to its parent."""
    (segment,) = attempt.segments
    places = [place for place, sampled in enumerate(segment.sampled) if sampled]
    calls = segment.calls or tuple(enumerate(turn.tokens for turn in attempt.turns))
    starts = accumulate((tokens for _, tokens in calls), initial=0)
    for (turn, tokens), start in zip(calls, starts, strict=False):
        if tokens and (start or attempt.branch is None or attempt.branch.parent is None):
            yield attempt, turn, places[start]
