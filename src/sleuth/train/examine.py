"""Examinations: the held-out questions asked before, during and after training."""

from dataclasses import dataclass
from itertools import zip_longest

from sleuth.evaluate.results import Evaluation
from sleuth.evaluate.runner import evaluate
from sleuth.train import guards
from sleuth.train.assemble import Parts
from sleuth.train.observer import RunObserver
from sleuth.train.ranks import cancel_together
from sleuth.train.rollout_schedule import RolloutSchedule


@dataclass(frozen=True, slots=True)
class Measured:
    """The held-out questions asked greedily and sampled."""

    greedy: Evaluation
    sampled: Evaluation


def measure(parts: Parts, observer: RunObserver, upcoming: RolloutSchedule, step: int, stage: str) -> Measured:
    """Asks the held-out questions greedily and sampled; the engine is left as after a start."""
    observer.begin(stage, 2 * len(parts.held_out))
    parts.publisher.publish(step)
    greedy, sampled = (upcoming.run(ask(parts, temperature, step, observer)) for temperature in (0.0, 1.0))
    parts.publisher.publish(step)
    return Measured(greedy, sampled)


async def ask(parts: Parts, temperature: float, step: int, observer: RunObserver | None = None) -> Evaluation:
    """The held-out questions asked by the weights the engine has; each rank asks its share, and knows all."""
    ranks = parts.ranks
    asking = evaluate(
        parts.agent,
        parts.held_out,
        parts.rubric,
        temperature=temperature,
        step=step,
        concurrent=parts.config.concurrency,
        positions=range(ranks.rank, len(parts.held_out), ranks.world),
        on_result=None if observer is None else lambda _: observer.advance(),
    )
    # The one between two steps is finished: its figures belong to the step before it, which is saved after it.
    mine = await (asking if observer is None else cancel_together(asking, ranks))
    gathered = ranks.gather(mine.results, f"the held-out questions at step {step}")
    # Ranks ask every world-th question, so taking one result of each rank in turn restores the order.
    rounds = zip_longest(*gathered)
    found = Evaluation(tuple(result for each in rounds for result in each if result is not None))
    guards.check_evaluation(found.trajectories, parts.config.guards)
    return found
