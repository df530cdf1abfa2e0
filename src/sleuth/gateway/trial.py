"""A trial of an outside agent: attempts without training, and a report on what they did."""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import run_batch
from sleuth.agent.task import Task
from sleuth.config.tree import Config
from sleuth.gateway.calls import count_forks
from sleuth.gateway.outside import OutsideAgent, OutsideCounts
from sleuth.gateway.rollout import CallTimes
from sleuth.records import Score, StopReason, Trajectory
from sleuth.reward.rubric import Rubric

FULL = 0.9  # fraction of agent.context_tokens from which a context counts as nearly full
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ScoredAttempt:
    """A finished attempt; the score is None if the attempt failed."""

    trajectory: Trajectory
    score: Score | None
    seconds: float

    @property
    def calls(self) -> int:
        """Replies of the policy."""
        return sum(turn.segment is not None for turn in self.trajectory.turns)

    @property
    def forks(self) -> int:
        return count_forks([segment.role for segment in self.trajectory.segments])

    @property
    def is_unanswered(self) -> bool:
        """Whether the attempt ended by itself, with neither an answer nor a reward."""
        trajectory = self.trajectory
        return trajectory.stop is StopReason.ANSWERED and trajectory.answer is None and trajectory.reward is None


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of the attempts that did not fail; `em` is the mean over those that the rubric scored."""

    count: int
    mean: float
    spread: float | None  # standard deviation; None for one attempt
    low: float
    high: float
    by_rubric: int
    by_agent: int
    em: float | None

    @classmethod
    def of(cls, attempts: Sequence[ScoredAttempt]) -> "Rewards | None":
        """Summarise the rewards; None if no attempt has one."""
        scored = [(each, each.score) for each in attempts if each.score is not None]
        if not scored:
            return None
        values = [score.episode_return for _, score in scored]
        by_rubric = [score for each, score in scored if each.trajectory.reward is None]
        return cls(
            count=len(values),
            mean=fmean(values),
            spread=stdev(values) if len(values) > 1 else None,
            low=min(values),
            high=max(values),
            by_rubric=len(by_rubric),
            by_agent=len(values) - len(by_rubric),
            em=fmean(score.parts["em"] for score in by_rubric) if by_rubric else None,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Attempts that failed for the same reason; `reason` is that of the first, `place` a file and line if known."""

    count: int
    reason: str
    place: str | None


@dataclass(frozen=True, slots=True)
class Seconds:
    """Durations; those of a call are means, as the gateway measures them, None without a call."""

    total: float
    attempt_median: float
    attempt_max: float
    call: float | None
    generation: float | None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What the attempts of a trial did, and hints on what to change before training."""

    agent: str
    model: str
    attempts: int
    calls: int
    segments: int
    forks: int
    rewritten: int
    helper_calls: int
    rewards: Rewards | None
    stops: dict[str, int]
    failed: int
    failures: tuple[Failure, ...]
    seconds: Seconds
    longest_context: int
    context_tokens: int
    hints: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        seconds, plural = self.seconds, "s" * (self.attempts != 1)
        per_call = ""
        if seconds.call is not None and seconds.generation is not None:
            per_call = f"; per call {seconds.call:.2f} s, of which generation {seconds.generation:.2f} s"
        table = {
            "calls": f"{self.calls:,} ({self.calls / self.attempts:.1f} per attempt)",
            "segments": f"{self.segments:,}, forks {self.forks:,}",
            "rewritten": f"{self.rewritten:,} messages",
            "helper calls": f"{self.helper_calls:,}",
            "ended": ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self.stops.items()),
            "rewards": _describe_rewards(self.rewards),
            "context": f"{self.longest_context:,} of {self.context_tokens:,} tokens in the longest segment",
            "time": f"{seconds.total:.1f} s; per attempt median {seconds.attempt_median:.2f} s, maximum "
            f"{seconds.attempt_max:.2f} s{per_call}",
            "failures": f"{self.failed:,}",
        }
        return [
            f"{self.attempts:,} attempt{plural} of {self.agent} with the model {self.model}",
            *(f"{name:<13}{text}" for name, text in table.items()),
            *(f"  {each.count:,} x {each.reason}" for each in self.failures),
            *(f"hint: {hint}" for hint in self.hints),
        ]


@dataclass(slots=True)
class _TimedAgent:
    """Runs, times and scores attempts; they are stored by group, which is different for each."""

    agent: OutsideAgent
    rubric: Rubric
    attempts: dict[int, ScoredAttempt] = field(default_factory=dict)

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        started = time.monotonic()
        trajectory = await self.agent.run(task, order, on_text)
        seconds = time.monotonic() - started
        self.attempts[task.group] = ScoredAttempt(*await self.rubric.score_one(trajectory), seconds)
        return trajectory


async def run_trial(
    agent: OutsideAgent, tasks: Sequence[Task], rubric: Rubric, concurrent: int, on_attempt: Callable[[], None]
) -> list[ScoredAttempt]:
    """Run tasks of distinct groups and score them as training would; `on_attempt` is called after each."""
    timed = _TimedAgent(agent, rubric)
    await run_batch(timed, tasks, concurrent, lambda _: on_attempt())
    return [timed.attempts[task.group] for task in tasks]


def report_trial(
    attempts: Sequence[ScoredAttempt], counts: OutsideCounts, times: CallTimes, config: Config, seconds: float
) -> TrialReport:
    """Build the report on at least one attempt; `seconds` is the duration of the whole trial."""
    durations = [each.seconds for each in attempts]
    in_gateway = times.parse + times.wait + times.encode
    rewards = Rewards.of(attempts)
    return TrialReport(
        agent=config.agent.source,
        model=config.model.policy,
        attempts=len(attempts),
        calls=counts.calls,
        segments=counts.segments,
        forks=counts.forks,
        rewritten=counts.rewritten,
        helper_calls=counts.helper_calls,
        rewards=rewards,
        stops=dict(Counter(each.trajectory.stop.value for each in attempts).most_common()),
        failed=sum(each.score is None for each in attempts),
        failures=group_failures([each.trajectory for each in attempts if each.score is None]),
        seconds=Seconds(
            total=seconds,
            attempt_median=median(durations),
            attempt_max=max(durations),
            call=in_gateway / counts.calls if counts.calls else None,
            generation=times.generate / counts.calls if counts.calls else None,
        ),
        longest_context=_longest_context(attempts),
        context_tokens=config.agent.context_tokens,
        hints=tuple(find_hints(attempts, rewards, config)),
    )


def group_failures(trajectories: Sequence[Trajectory]) -> tuple[Failure, ...]:
    """Group failures by the exception and its line, or by their text without numbers; the most frequent first."""
    found: dict[str, list[str]] = {}
    for trajectory in trajectories:
        reason = trajectory.failure or trajectory.stop.value
        found.setdefault(_classify(reason)[0], []).append(reason)
    groups = sorted(found.values(), key=len, reverse=True)
    return tuple(Failure(len(reasons), reasons[0], _classify(reasons[0])[1]) for reasons in groups)


def find_hints(attempts: Sequence[ScoredAttempt], rewards: Rewards | None, config: Config) -> list[str]:
    """Return what the attempts suggest to change before training."""
    total, agent, limit = len(attempts), config.agent, config.guards.function_failures
    stops = Counter(each.trajectory.stop for each in attempts)
    overlong, out_of_turns = stops[StopReason.OUT_OF_TOKENS], stops[StopReason.OUT_OF_TURNS]
    called = [each for each in attempts if each.calls]
    replies = [turn for each in called for turn in each.trajectory.turns if turn.segment is not None]
    silent = sum(not each.calls and each.trajectory.stop is StopReason.FUNCTION_FAILED for each in attempts)
    failed, unanswered = sum(each.score is None for each in attempts), sum(each.is_unanswered for each in attempts)
    longest, cut = _longest_context(attempts), sum(turn.tokens == agent.turn_tokens for turn in replies)
    hints = [
        (
            silent,
            f"{silent} of {total} attempts got no reply from the policy; give the agent's client llm.base_url, "
            "llm.api_key and llm.model (in a program: OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL)",
        ),
        (
            failed,
            f"{failed} of {total} attempts failed; training leaves such attempts out, and stops above {limit:.0%} "
            "(guards.function_failures)",
        ),
        (
            called and all(each.forks > 0 for each in called),
            "every attempt forks: the agent edits, trims or summarises its history, or calls in parallel; an agent "
            "with one conversation should only append to it",
        ),
        (
            rewards is not None and rewards.count > 1 and rewards.low == rewards.high,
            f"all rewards are {rewards.low if rewards else 0:g}; training needs attempts whose rewards differ: look "
            "at one with --show, or give the model a cold start (docs/sft.md)",
        ),
        (
            unanswered,
            f"{unanswered} of {total} attempts ended without an answer or a reward; the content of the last reply is "
            "the answer, unless it calls a function",
        ),
        (
            overlong or longest >= FULL * agent.context_tokens,
            f"the longest segment has {longest:,} of {agent.context_tokens:,} tokens, and {overlong} of {total} "
            "attempts ran out of them; raise agent.context_tokens, or shorten the tool results",
        ),
        (
            out_of_turns,
            f"{out_of_turns} of {total} attempts used up agent.turns = {agent.turns}; raise it, or end the agent "
            "earlier",
        ),
        (
            cut,
            f"{cut} of {len(replies)} replies have agent.turn_tokens = {agent.turn_tokens} tokens and were probably "
            "cut; raise it",
        ),
        (
            called and not any(any(each.trajectory.sampled) for each in called),
            "no token was sampled: the agent sets temperature 0, and greedy tokens are not trained",
        ),
    ]
    return [sentence for applies, sentence in hints if applies]


def _longest_context(attempts: Sequence[ScoredAttempt]) -> int:
    return max((len(segment.ids) for each in attempts for segment in each.trajectory.segments), default=0)


def _classify(reason: str) -> tuple[str, str | None]:
    """Return the kind of a failure, and the place of an exception as `hooks.describe_exception` writes it."""
    function, raised, rest = reason.partition(" raised ")
    text, _, end = rest.rpartition(" (")
    file, _, line = end.removesuffix(")").rpartition(":")
    if not (raised and file and line.isdecimal() and end.endswith(")")):
        return NUMBER.sub("#", reason), None
    return f"{function} {text.partition(':')[0]} {end}", f"{file}:{line}"


def _describe_rewards(rewards: Rewards | None) -> str:
    if rewards is None:
        return "none"
    spread = "" if rewards.spread is None else f", standard deviation {rewards.spread:.2f}"
    sources = {"the rubric": rewards.by_rubric, "the agent": rewards.by_agent}
    by = ", ".join(f"{count:,} by {name}" for name, count in sources.items() if count)
    em = "" if rewards.em is None else f"; EM {rewards.em:.2f}"
    return f"mean {rewards.mean:.2f}{spread}, from {rewards.low:g} to {rewards.high:g} ({by}{em})"
