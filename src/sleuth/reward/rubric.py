"""The reward of a trajectory: an answer metric or a user's function, format tiers, and the parts to record."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat

from sleuth.config.hooks import IMPORT, Contract, call, describe_exception, import_function, resolve
from sleuth.config.reward import RewardConfig
from sleuth.errors import FunctionFailed
from sleuth.http.connections import LoopSemaphore, RateLimiter
from sleuth.records import Outcome, Question, Score, StopReason, ToolCall, Trajectory, Turn, run_lengths
from sleuth.reward.answers import ANSWERS, abstains, cover_em, exact_match, f1

RewardFunction = Callable[[Question, Trajectory], Any]

# Search-R1 v0.3: reward of a wrong and of a right answer, by the validity of the format.
TIERS = {True: (0.2, 1.0), False: (0.1, 0.8)}
MANY_ANSWERS = 10
AGENT = "the agent"  # the name, in errors, of a reward that the agent itself computed
RESERVED_PARTS = ("cover_em", "em", "f1", "format", "retrieval_hit", "searches")  # what `measure` records
CONTRACT = Contract(("question", "trajectory"), "a number or a Score", is_async=None)


class Rubric:
    """Scores trajectories according to the reward settings."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._function = _reward_function(config.answer)
        self._slots, self._rate = LoopSemaphore(config.concurrency), RateLimiter(config.rate)

    async def score_one(self, trajectory: Trajectory) -> tuple[Trajectory, Score | None]:
        """Return the trajectory and its score; if the user's function fails, an unusable trajectory and None."""
        if not trajectory.stop.usable:
            return trajectory, None
        try:
            return trajectory, await self.score(trajectory.question, trajectory)
        except FunctionFailed as failure:
            return replace(trajectory, stop=StopReason.FUNCTION_FAILED, failure=str(failure)), None

    async def score_all(self, trajectories: Sequence[Trajectory]) -> list[tuple[Trajectory, Score | None]]:
        """Score the trajectories; calls of an async function run concurrently, within the limits of the settings."""
        return list(await asyncio.gather(*map(self.score_one, trajectories)))

    async def score(self, question: Question, trajectory: Trajectory) -> Score:
        """Return the training reward with all its parts, including those that do not count towards the total.

        A reward that the agent itself computed replaces the configured one.
        """
        if not trajectory.stop.usable:
            raise ValueError(f"a trajectory that stopped with {trajectory.stop} is unusable and has no score")
        parts = measure(question, trajectory)
        if self._config.useless_search:
            parts["useless_searches"] = float(count_useless_searches(trajectory))
        if trajectory.reward is not None:
            own = _validate(AGENT, trajectory.reward, trajectory)
            return Score(own.total, _merge(AGENT, parts, own.parts), own.turns)
        answer = self._abstention_score(question, trajectory)
        if answer is None:
            answer = await self._answer_score(question, trajectory)
        every = _merge(self._config.answer, parts, answer.parts)
        total = answer.total
        if self._config.format is not False:
            total = self._apply_format(total, trajectory, parts)
        if self._config.many_answers and count_answer_tags(trajectory) > MANY_ANSWERS:
            total = min(total, total / 4)  # min, because a quarter of a negative reward would be a smaller penalty
        if self._config.useless_search:
            total -= self._config.useless_search * parts["useless_searches"]
        return Score(total, every, answer.turns)

    def _abstention_score(self, question: Question, trajectory: Trajectory) -> Score | None:
        """Score an abstention, and any answer to an unanswerable question; None if the answer metric decides."""
        if self._config.abstain is None:
            return None
        abstained = abstains(trajectory.answer, question.golden_answers)
        if question.answerable is False:
            return Score(float(abstained), {})
        return Score(self._config.abstain, {}) if abstained else None

    async def _answer_score(self, question: Question, trajectory: Trajectory) -> Score:
        name = self._config.answer
        value = call(name, self._function, question, trajectory)
        if inspect.isawaitable(value):
            try:
                async with self._slots.current():
                    await self._rate.acquire()
                    async with asyncio.timeout(self._config.deadline):
                        value = await value
            except TimeoutError as error:
                raise FunctionFailed(
                    f"{name!r} returned no result within {self._config.deadline:g} s; raise reward.deadline"
                ) from error
            except Exception as error:
                raise FunctionFailed(describe_exception(name, error)) from error
        return _validate(name, value, trajectory)

    def _apply_format(self, value: float, trajectory: Trajectory, parts: dict[str, float]) -> float:
        """Interpolate between the rewards of a wrong and a right answer in this format."""
        if not 0.0 <= value <= 1.0:
            raise FunctionFailed(
                f"{self._config.answer!r} returned {value}; expected 0 (wrong) to 1 (right), or set "
                "reward.format = false"
            )
        is_valid = parts["format"] == 1.0
        wrong, right = TIERS[is_valid] if self._config.format is True else (self._config.format * is_valid, 1.0)
        if is_valid:
            wrong += self._config.retrieval * parts["retrieval_hit"]
        if trajectory.answer is None:
            wrong = 0.0  # the lowest tier still requires an answer
        return (1.0 - value) * wrong + value * right


def measure(question: Question, trajectory: Trajectory) -> dict[str, float]:
    """Compute the parts that every score records."""
    answer, golds = trajectory.answer, question.golden_answers
    return {
        "em": exact_match(answer, golds),
        "f1": f1(answer, golds),
        "cover_em": cover_em(answer, golds),
        "format": float(has_valid_format(trajectory)),
        "retrieval_hit": float(any(_shows_answer(turn, golds) for turn in trajectory.turns)),
        "searches": float(trajectory.searches),
    }


def score_by_em(trajectory: Trajectory) -> Score | None:
    """Score a trajectory by exact match, the default; None if it is unusable."""
    if not trajectory.stop.usable:
        return None
    parts = measure(trajectory.question, trajectory)
    return Score(parts["em"], parts)


def has_valid_format(trajectory: Trajectory) -> bool:
    """Whether every turn has the protocol's format, the last turn answers, and all others are searches with results.

    Only sampled text is checked, so documents cannot affect the result. The format with tags is think, (search,
    information, think)*, answer, with only white space in between.
    """
    if not trajectory.turns:
        return False
    *earlier, last = trajectory.turns
    # Only a search that was carried out is followed by information; a refused or corrected search is not.
    return (
        all(turn.formed and turn.outcome in (Outcome.FOUND, Outcome.RETURNED) for turn in earlier)
        and last.formed
        and last.outcome is Outcome.ANSWERED
    )


def count_answer_tags(trajectory: Trajectory) -> int:
    return sum(turn.text.count("<answer>") for turn in trajectory.turns)


def count_useless_searches(trajectory: Trajectory) -> int:
    """Count the searches that returned no passage which an earlier search of the episode had not returned."""
    found: set[str] = set()
    useless = 0
    for turn in trajectory.turns:
        if isinstance(turn.action, ToolCall) and turn.action.name == "search" and turn.outcome is Outcome.FOUND:
            passages = {hit.passage.id for hit in turn.hits}
            useless += passages <= found
            found |= passages
    return useless


def _shows_answer(turn: Turn, golds: Sequence[str]) -> bool:
    """Whether the part of a passage that the model was shown contains a gold answer."""
    texts = [hit.passage.contents for hit in turn.hits]
    if turn.shown is None:
        return any(cover_em(text, golds) for text in texts)
    # The passage must contain the answer too, because the text around the passages also consists of words.
    shown = [gold for gold in golds if cover_em(turn.shown, (gold,))]
    return any(cover_em(text, shown) for text in texts)


def _reward_function(answer: str) -> RewardFunction:
    if answer.startswith(IMPORT):
        return import_function(answer, CONTRACT)
    metric = resolve("reward.answer", answer, ANSWERS, CONTRACT)
    return lambda question, trajectory: metric(trajectory.answer, question.golden_answers)


def _validate(name: str, value: object, trajectory: Trajectory) -> Score:
    """Convert the result of a reward function to a score of finite numbers."""
    if not isinstance(value, Score):
        return Score(_number(name, "", value), {})
    if not isinstance(value.parts, dict) or not all(isinstance(part, str) for part in value.parts):
        raise FunctionFailed(
            f"{name!r} returned a Score with parts {_short(value.parts)}; expected a dict of numbers by name"
        )
    parts = {part: _number(name, f" for the part {part!r}", number) for part, number in value.parts.items()}
    return Score(_number(name, " for the total", value.total), parts, _turn_rewards(name, value, trajectory))


def _merge(name: str, parts: dict[str, float], added: dict[str, float]) -> dict[str, float]:
    if clash := parts.keys() & added.keys():
        reserved = f"reserved are {', '.join(RESERVED_PARTS)}"
        raise FunctionFailed(f"{name!r} returned the reserved part name {min(clash)!r}; rename it ({reserved})")
    return parts | added


def _turn_rewards(name: str, score: Score, trajectory: Trajectory) -> tuple[float, ...]:
    if not isinstance(score.turns, Sequence) or isinstance(score.turns, str):
        raise FunctionFailed(
            f"{name!r} returned a Score with turns {_short(score.turns)}; expected one number per turn"
        )
    if score.turns and len(score.turns) != len(trajectory.turns):
        raise FunctionFailed(
            f"{name!r} returned {len(score.turns)} turn rewards, expected one for each of {len(trajectory.turns)} turns"
        )
    runs = [run for segment in trajectory.segments for run in run_lengths(segment.sampled)]
    spans = sum(origin == "sampled" for origin, _ in runs)
    known = any(segment.calls for segment in trajectory.segments)  # which tokens belong to which turn
    if score.turns and spans and not known and spans != len(trajectory.turns):
        raise FunctionFailed(
            f"{name!r} returned turn rewards, but the episode has {len(trajectory.turns)} turns and {spans} sampled "
            "spans; return a total only"
        )
    return tuple(_number(name, f" for turn {place}", value) for place, value in enumerate(score.turns))


def _number(name: str, of: str, value: object) -> float:
    """Convert a value from a user's function to a finite float."""
    expected = "a number" if of else CONTRACT.returns
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        raise FunctionFailed(f"{name!r} returned {_short(value)}{of}; expected {expected}")
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise FunctionFailed(f"{name!r} returned {_short(value)}{of} ({error}); expected {expected}") from error
    if not math.isfinite(number):
        raise FunctionFailed(f"{name!r} returned {number}{of}; expected a finite number")
    return number


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(value).__name__})"
