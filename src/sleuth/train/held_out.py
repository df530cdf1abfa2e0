"""Evaluation on the held-out questions before, during and after training."""

from dataclasses import dataclass
from itertools import zip_longest

from sleuth.evaluate.results import Evaluation
from sleuth.evaluate.runner import evaluate
from sleuth.train.guards import check_evaluation
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import cancel_together
from sleuth.train.rollout_schedule import RolloutSchedule


@dataclass(frozen=True, slots=True)
class HeldOutResults:
    """The held-out questions answered greedily and with sampling."""

    greedy: Evaluation
    sampled: Evaluation


def evaluate_twice(
    parts: Parts, rollouts: RolloutSchedule, observer: RunObserver, step: int, stage: str
) -> HeldOutResults:
    """Evaluate greedily and with sampling; publishing before and after clears the engine's cache."""
    observer.begin(stage, 2 * len(parts.held_out))
    parts.publisher.publish(step)
    greedy, sampled = (rollouts.run(evaluate_held_out(parts, value, step, observer)) for value in (0.0, 1.0))
    parts.publisher.publish(step)
    return HeldOutResults(greedy, sampled)


async def evaluate_held_out(
    parts: Parts, temperature: float, step: int, observer: RunObserver | None = None
) -> Evaluation:
    """Evaluate with the engine's current weights; each rank asks its share of the questions."""
    ranks = parts.ranks
    work = evaluate(
        parts.agent,
        parts.held_out,
        parts.rubric,
        temperature=temperature,
        step=step,
        concurrent=parts.config.concurrency,
        positions=range(ranks.rank, len(parts.held_out), ranks.world),
        on_result=None if observer is None else lambda _: observer.advance(),
    )
    # Between two steps an evaluation is not cancelled: its metrics belong to a step that is saved afterwards.
    mine = await (work if observer is None else cancel_together(work, ranks))
    gathered = ranks.gather(mine.results, f"the held-out questions at step {step}")
    # Each rank asks every world-th question, so taking one result from each rank in turn restores the order.
    rounds = zip_longest(*gathered)
    evaluation = Evaluation(tuple(result for each in rounds for result in each if result is not None))
    check_evaluation(evaluation.trajectories, parts.config.guards)
    return evaluation
