"""Information gain: turn rewards for searches, from the policy's own likelihood of the gold answers.

Each trajectory is cut after its prompt and after each search, and each gold answer is appended to each of these
contexts. The rows of a trajectory are a family: what they have in common is computed once.

Suffixes: N trajectories, S scored tokens of a row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sleuth.agent.written_answer import OPENING_TOKENS, AnswerWriter
from sleuth.algorithms.information_gain import potentials, turn_gains
from sleuth.config.algorithm import InformationGainConfig
from sleuth.model.packing import Row
from sleuth.records import Outcome, Trajectory
from sleuth.train.credit import RewardBatch
from sleuth.train.metrics import Metrics

MAX_ANSWERS = 8  # of a question; more are other spellings of the same

Score = Callable[[Sequence[Row]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The turns of a trajectory that searched, and the number of tokens before the first turn and after each search."""

    searches: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InformationGain:
    """Computes the turn rewards of a step; `settings.coefficient` is above 0."""

    settings: InformationGainConfig
    writer: AnswerWriter

    def add(self, batch: RewardBatch, score: Score) -> tuple[RewardBatch, Metrics]:
        """Add the turn rewards to a batch; `score` returns the logprobs of the scored tokens of rows; collective."""
        settings, rows, row_contexts = self.settings, list[Row](), list[int]()
        found: list[tuple[int, Contexts]] = []
        contexts = 0
        for index, each in enumerate(find_contexts(batch.trajectories)):
            if each is None:
                continue
            found.append((index, each))
            for context, row in self._probes(batch.trajectories[index], each.ends):
                rows.append(replace(row, family=index))
                row_contexts.append(contexts + context)
            contexts += len(each.ends)
        if not rows:
            return batch, {}
        values = score(rows)
        probe_T = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(each_S) for each_S in values]))
        call = torch.cat(values).double(), probe_T, torch.tensor(row_contexts)
        potential_C = potentials(*call, settings.potential)
        shares = potential_C.split([len(each.ends) for _, each in found])
        return self._rewarded(batch, found, shares), _metrics(shares)

    def _probes(self, trajectory: Trajectory, ends: Sequence[int]) -> Iterator[tuple[int, Row]]:
        """Yield the number of each context, the first `end` tokens, with a row for each gold answer after it."""
        ids_L = np.array(trajectory.ids, dtype=np.int64)
        answers = list(dict.fromkeys(trajectory.question.golden_answers))[:MAX_ANSWERS]
        for context, end in enumerate(ends):
            last = ids_L[max(0, end - OPENING_TOKENS) : end].tolist()
            for written in (self.writer.write(answer, last) for answer in answers):
                probe_L = torch.from_numpy(np.concatenate([ids_L[:end], written.ids[: written.end]]))
                yield context, Row(probe_L, torch.arange(end + written.first, end + written.end), {})

    def _rewarded(
        self, batch: RewardBatch, found: Sequence[tuple[int, Contexts]], shares: Sequence[Tensor]
    ) -> RewardBatch:
        settings, rewards_N = self.settings, batch.rewards_N.clone()
        turns = [list(each) for each in batch.turns]
        for (index, contexts), potential_C in zip(found, shares, strict=True):
            count = len(batch.trajectories[index].turns)
            gains = turn_gains(potential_C, contexts.searches, count, settings.terminal)
            earned = (settings.coefficient * gains).tolist()
            turns[index] = [sum(both) for both in zip(turns[index] or [0.0] * count, earned, strict=True)]
            if settings.terminal == "last":
                rewards_N[index] += sum(earned)
        return replace(batch, rewards_N=rewards_N, turns=turns)


def find_contexts(trajectories: Sequence[Trajectory]) -> list[Contexts | None]:
    """Find the contexts of each trajectory; None without gold answer, search or tokens."""
    starts: dict[tuple[int, int], list[int]] = {}
    found: list[Contexts | None] = []
    for each in trajectories:
        begins = starts[each.group, each.sample] = _turn_starts(each, starts)
        searches = [place for place, turn in enumerate(each.turns) if turn.outcome is Outcome.FOUND]
        answers = each.question.golden_answers if each.question.answerable is not False else ()
        if not begins or not searches or not answers:
            found.append(None)
            continue
        begins = [*begins, len(each.ids)]  # after the last turn, whatever the model was shown
        if each.sampled[-1] and searches[-1] == len(each.turns) - 1:
            searches.pop()  # its result did not fit into the context
        found.append(Contexts(tuple(searches), (begins[0], *(begins[turn + 1] for turn in searches))))
    return found


def _turn_starts(trajectory: Trajectory, parents: dict[tuple[int, int], list[int]]) -> list[int]:
    """Return the place of the first token of each turn; empty if they are unknown, as in a branch of a lost parent."""
    if len(trajectory.segments) != 1:
        return []
    (segment,) = trajectory.segments
    own = trajectory.turns
    begins: list[int] = []
    if (branch := trajectory.branch) is not None and branch.parent is not None:
        parent = parents.get((trajectory.group, branch.parent))
        if not parent:
            return []
        begins = [start for start in parent if start < branch.shared]
        own = own[len(begins) :]
    places = [*(place for place, sampled in enumerate(segment.sampled) if sampled), len(segment.ids)]
    first = 0
    for turn in own:
        begins.append(places[first])
        first += turn.tokens
    return begins


def _metrics(shares: Sequence[Tensor]) -> Metrics:
    """Compute the mean potential after the prompt, and mean and sign of the gains of searches."""
    gain_K = torch.cat([each.diff() for each in shares])
    start = float(torch.stack([each[0] for each in shares]).mean())
    if not len(gain_K):
        return {"information_gain/prompt": start}
    return {
        "information_gain/prompt": start,
        "information_gain/search": float(gain_K.mean()),
        "information_gain/positive": float((gain_K > 0).double().mean()),
    }
