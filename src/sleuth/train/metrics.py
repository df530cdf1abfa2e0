"""Metrics of a training step (timing, speed, memory, rollouts, staleness), and its per-token log.

Suffixes: S trained tokens of a trajectory, T scored tokens of a pack.
"""

import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite

import torch
from torch import Tensor

from sleuth.agent.tools import Usage
from sleuth.engines.paged.scheduler import EngineStats
from sleuth.gateway.calls import count_forks
from sleuth.gateway.outside import OutsideCounts
from sleuth.model.packing import WEIGHT, Pack
from sleuth.model.policy import Policy
from sleuth.records import Group, Malformed, StopReason, Trajectory
from sleuth.reward.answers import abstains
from sleuth.train import accelerators
from sleuth.train.experience import Experience
from sleuth.train.ranks import Ranks

Metrics = dict[str, float]

GIB = 1 << 30
UNUSABLE = "episode/unusable"  # fraction of episodes lost to failures of any kind
SCORE_PARTS = ("em", "f1", "format", "searches", "retrieval_hit")
BUILTIN_PARTS = {*SCORE_PARTS, "cover_em"}


class Timer:
    """Accumulates durations and counts by name."""

    def __init__(self) -> None:
        self._totals: Metrics = defaultdict(float)

    def count(self, name: str, amount: int) -> None:
        self._totals[name] += amount

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._totals[f"time/{name}"] += time.monotonic() - started

    def collect(self) -> Metrics:
        """Return the durations in seconds as `time/NAME`, together with the counts; reset both."""
        totals, self._totals = self._totals, defaultdict(float)
        return dict(totals)


def finite_only(metrics: Mapping[str, float]) -> Metrics:
    """Drop metrics that are NaN or infinite, which JSON cannot represent."""
    return {name: value for name, value in metrics.items() if isfinite(value)}


def peak_memory_gib() -> float:
    """Return the peak resident memory of this process in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (GIB if sys.platform == "darwin" else 1 << 20)


def memory_metrics() -> Metrics:
    gpu = {"memory/gpu_gib": torch.cuda.max_memory_allocated() / GIB} if torch.cuda.is_available() else {}
    return {"memory/host_gib": peak_memory_gib(), **gpu}


def training_flops(policy: Policy) -> int:
    """FLOPs per token: 2 per parameter forward, 2 backward, and 2 more per trained parameter."""
    trained = sum(parameter.numel() for _, parameter in policy.parameters())
    return 2 * (2 * policy.size + trained)


def peak_flops(device: torch.device) -> float | None:
    """Return the peak bf16 FLOP/s of a GPU; None if the device is unknown, or not a GPU."""
    sheet = accelerators.identify(device) if device.type == "cuda" else None
    return None if sheet is None else sheet.bf16 or None


def speed_metrics(policy: Policy, ranks: Ranks, episodes: int, known: Mapping[str, float]) -> Metrics:
    """Compute the throughput of a step from its other metrics; `train/tokens` is summed over ranks."""
    metrics = {
        "speed/tokens": known["episode/tokens_all"] / known["time/step"],
        "speed/trajectories": episodes / known["time/step"],
    }
    peak = peak_flops(policy.device)
    if peak is not None and known.get("time/train"):
        metrics["speed/mfu"] = training_flops(policy) * known["train/tokens"] / known["time/train"] / peak
    if "train/tokens" in known:
        every = ranks.gather([known["train/tokens"]], "the count of tokens")
        metrics["train/tokens"] = sum(tokens for (tokens,) in every)
    return metrics


def staleness_metrics(trajectories: Sequence[Trajectory], step: int) -> Metrics:
    """Compute the age of the sampled tokens in weight versions."""
    ages = [step - version for trajectory in trajectories for version in trajectory.versions]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": float(max(ages))} if ages else {}


def stop_metric(reason: StopReason) -> str:
    """Return the name of the metric for the fraction of episodes with this stop reason."""
    return f"stop/{reason.value}"


def stop_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Compute the fraction of episodes for each stop reason, and the fraction lost to failures."""
    counts = Counter(trajectory.stop for trajectory in trajectories)
    lost = sum(counts[reason] for reason in StopReason if not reason.usable)
    shares = {stop_metric(reason): counts[reason] / len(trajectories) for reason in StopReason}
    return {**shares, UNUSABLE: lost / len(trajectories)}


def episode_metrics(groups: Sequence[Group]) -> Metrics:
    """Compute means over the usable episodes."""
    scored = [pair for group in groups for pair in zip(group.trajectories, group.scores, strict=True)]
    trajectories, scores = [each for each, _ in scored], [score for _, score in scored]
    count = len(scored)
    right = [logprob for each, score in scored if score.parts["em"] == 1.0 for logprob in each.logprobs]
    malformed = sum(any(isinstance(turn.action, Malformed) for turn in each.turns) for each in trajectories)
    # Custom reward parts, averaged over the episodes that have them, and turn rewards.
    added: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        for name in score.parts.keys() - BUILTIN_PARTS:
            added[f"reward/{name}"].append(score.parts[name])
        if score.turns:
            added["reward/turns"].append(sum(score.turns))
    return {
        "reward/mean": sum(score.episode_return for score in scores) / count,
        **{name: sum(each) / len(each) for name, each in sorted(added.items())},
        **{f"episode/{name}": sum(score.parts[name] for score in scores) / count for name in SCORE_PARTS},
        "episode/tokens": sum(len(each.logprobs) for each in trajectories) / count,
        "episode/tokens_all": float(sum(len(each.ids) for each in trajectories)),
        "episode/malformed": malformed / count,
        "episode/answerless": sum(each.answer is None for each in trajectories) / count,
        **abstention_metrics(trajectories),
        "group/with_spread": sum(map(has_spread, groups)) / len(groups),
        **({"policy/likelihood_right": sum(right) / len(right)} if right else {}),
        **segment_metrics(trajectories),
        **tree_metrics(groups),
    }


def tree_metrics(groups: Sequence[Group]) -> Metrics:
    """Compute episodes per tree, the fraction of sampled tokens that they share, and of trees with reward spread."""
    returns: dict[tuple[int, int], list[float]] = defaultdict(list)
    own = whole = 0
    for number, group in enumerate(groups):
        for each, score in zip(group.trajectories, group.scores, strict=True):
            if each.branch is not None:
                returns[number, each.branch.tree].append(score.episode_return)
                own += len(each.logprobs)
                whole += sum(turn.tokens for turn in each.turns)
    if not returns:
        return {}
    return {
        "tree/leaves": sum(map(len, returns.values())) / len(returns),
        "tree/shared_tokens": 1.0 - own / whole if whole else 0.0,
        "tree/with_spread": sum(len(set(each)) > 1 for each in returns.values()) / len(returns),
    }


def abstention_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Compute the rate of abstentions, of all episodes and, if there are any, of those with unanswerable questions."""

    def rate(chosen: Sequence[Trajectory]) -> float:
        return sum(abstains(each.answer, each.question.golden_answers) for each in chosen) / len(chosen)

    unanswerable = [each for each in trajectories if each.question.answerable is False]
    return {
        "episode/abstained": rate(trajectories),
        **({"episode/abstained_unanswerable": rate(unanswerable)} if unanswerable else {}),
    }


def segment_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Compute means of segments, forks and sampled tokens by role; empty if all trajectories are one plain segment."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    if all(len(each.segments) <= 1 for each in trajectories) and not any(segment.role for segment in segments):
        return {}
    tokens: Counter[str] = Counter()
    for segment in segments:
        tokens[role_metric(segment.role)] += len(segment.logprobs)
    count = len(trajectories)
    return {
        "segment/count": len(segments) / count,
        "segment/forks": sum(count_forks([each.role for each in one.segments]) for one in trajectories) / count,
        **{name: total / count for name, total in sorted(tokens.items())},
    }


def role_metric(role: str) -> str:
    """Return the name of the metric for the sampled tokens of a role; calls without a role count as policy."""
    return f"role/{role or 'policy'}/tokens"


def has_spread(group: Group) -> bool:
    """Whether the rewards of a group are not all equal."""
    return len({score.episode_return for score in group.scores}) > 1


@dataclass(frozen=True, slots=True)
class RolloutCounters:
    """Snapshot of the counters of the search tool, the engine, the tools, and an outside agent."""

    searches: Usage
    stats: EngineStats
    tools: Mapping[str, Usage]
    outside: OutsideCounts | None = None

    def metrics_since(self, before: "RolloutCounters", reward_seconds: float, ranks: Ranks) -> Metrics:
        """Compute the metrics since an earlier snapshot, combined over all ranks."""
        mine = [reward_seconds, *(now - then for now, then in zip(self._counts(), before._counts(), strict=True))]
        every = [theirs for (theirs,) in ranks.gather([mine], "the counts of searches")]
        totals = [sum(part) for part in zip(*every, strict=True)]
        reward, searches, seconds, busy, reused, prefilled, preempted, *others = totals
        gateway, tools = others[: len(self._outside)], others[len(self._outside) :]
        metrics = {
            "search/count": float(searches),
            "time/search": busy / ranks.world,
            "time/reward": reward / ranks.world,
        }
        if searches:
            metrics["search/latency"] = seconds / searches
        if reused + prefilled:  # only the embedded engine counts its work
            metrics["engine/reused"] = reused / (reused + prefilled)
            metrics["engine/preempted"] = float(preempted)
        for name, calls, failures, duration in zip(self.tools, tools[::3], tools[1::3], tools[2::3], strict=True):
            metrics |= {f"tool/{name}/calls": float(calls), f"tool/{name}/failures": float(failures)}
            if calls:
                metrics[f"tool/{name}/seconds"] = duration / calls
        return metrics | {f"gateway/{name}": float(n) for name, n in zip(self._outside, gateway, strict=True)}

    @property
    def _outside(self) -> dict[str, int]:
        return {} if self.outside is None else asdict(self.outside)

    def _counts(self) -> tuple[float, ...]:
        searches, stats = self.searches, self.stats
        tools = [count for usage in self.tools.values() for count in (usage.calls, usage.failures, usage.seconds)]
        work = (stats.reused, stats.prefilled, stats.preempted)
        return (searches.calls, searches.seconds, searches.busy, *work, *self._outside.values(), *tools)


DECIMALS = 5  # of ratios and advantages

LoggedRow = dict[str, float | list[float | None] | None]


@dataclass(slots=True)
class TokenLog:
    """Collects per-token values of a step; ratios stay on the device until an update is finished."""

    _experiences: list[Experience] = field(default_factory=list)
    _weights: dict[int, Tensor] = field(default_factory=dict)
    _ratios: dict[int, Tensor] = field(default_factory=dict)
    _pending: list[tuple[tuple[int, ...], tuple[int, ...], Tensor]] = field(default_factory=list)

    def start(self, experiences: Sequence[Experience]) -> None:
        """Begin a step; the experiences must have the column advantage."""
        self._experiences = list(experiences)
        self._weights, self._ratios, self._pending = {}, {}, []

    def set_weights(self, experiences: Sequence[Experience]) -> None:
        self._weights |= {_key(each): each.columns[WEIGHT] for each in experiences}

    def add_ratios(self, packed: Pack, log_ratio_T: Tensor) -> None:
        """Record the log ratios of a pack: new minus old log-probabilities."""
        if packed.rows:
            self._pending.append((packed.rows, packed.scored, log_ratio_T.detach()))

    def finish_update(self, experiences: Sequence[Experience], ranks: Ranks) -> None:
        """Gather the ratios of the rows of these experiences from all ranks at the end of an update."""
        mine: list[tuple[int, Tensor]] = []
        for indices, scored, log_ratio_T in self._pending:
            parts = log_ratio_T.float().exp().cpu().split(scored)
            # Pickling a view of a tensor would send the whole tensor to the other ranks.
            mine += [(index, part.clone()) for index, part in zip(indices, parts, strict=True)]
        self._pending = []
        ratios = dict(pair for theirs in ranks.gather(mine, "the ratios of an update") for pair in theirs)
        first = 0
        for each in experiences:
            self._ratios[_key(each)] = each.join([ratios[first + row] for row in range(len(each.rows))])
            first += len(each.rows)

    def collect(self) -> dict[int, LoggedRow]:
        """Return the logged values of each trajectory, keyed by its id(), and reset; empty if no update was made."""
        found: dict[int, LoggedRow] = {
            id(each.trajectory): {
                "advantage": _compact(each, each.columns["advantage"], DECIMALS),
                "weight": _compact(each, self._weights.get(_key(each)), None),
                "ratio": _spread(each, self._ratios.get(_key(each)), DECIMALS),
            }
            for each in self._experiences
        }
        self.start(())
        return found


def _key(experience: Experience) -> int:
    """Return the id of the tensor of turns, which stays the same when columns are added."""
    return id(experience.turn_S)


def _compact(
    experience: Experience, column_S: Tensor | None, decimals: int | None
) -> float | list[float | None] | None:
    """Reduce a column to a single number if all sampled tokens have the same value."""
    values = _spread(experience, column_S, decimals)
    if column_S is None or not values:
        return None
    same = experience.trained is None and bool((column_S == column_S[0]).all())
    return values[0] if same else values


def _spread(experience: Experience, column_S: Tensor | None, decimals: int | None) -> list[float | None] | None:
    """Convert a column to a list of one value per sampled token, None for those of roles that are not trained."""
    values = _to_list(column_S, decimals)
    if values is None or experience.trained is None:
        return values
    rest = iter(values)
    return [next(rest) if each else None for each in experience.trained]


def _to_list(column_S: Tensor | None, decimals: int | None) -> list[float | None] | None:
    """Convert a column to a list for JSON; non-finite values become None."""
    if column_S is None:
        return None
    wide_S = column_S.double()
    values = (wide_S if decimals is None else wide_S.round(decimals=decimals)).tolist()
    return [value if isfinite(value) else None for value in values]
