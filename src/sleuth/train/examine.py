"""Examinations: the held-out questions asked before, during and after training."""

from dataclasses import dataclass

from sleuth.evaluate.suite import Evaluation, evaluate
from sleuth.train import guards
from sleuth.train.assemble import Parts
from sleuth.train.stopping import together
from sleuth.train.upcoming import Upcoming
from sleuth.train.watch import Watch


@dataclass(frozen=True, slots=True)
class Measured:
    """The held-out questions asked greedily and sampled."""

    greedy: Evaluation
    sampled: Evaluation


def measure(parts: Parts, watch: Watch, upcoming: Upcoming, step: int, stage: str) -> Measured:
    """Asks the held-out questions greedily and sampled; the engine is left as after a start."""
    watch.begin(stage, 2 * len(parts.held_out))
    parts.publisher.publish(step)
    greedy, sampled = (upcoming.run(ask(parts, temperature, step, watch)) for temperature in (0.0, 1.0))
    parts.publisher.publish(step)
    return Measured(greedy, sampled)


async def ask(parts: Parts, temperature: float, step: int, watch: Watch | None = None) -> Evaluation:
    """The held-out questions asked by the weights the engine has; each rank asks its share, and knows all."""
    ranks = parts.ranks
    asking = evaluate(
        parts.agent,
        parts.held_out,
        parts.rubric,
        temperature=temperature,
        step=step,
        concurrent=parts.config.concurrency,
        done=None if watch is None else lambda _: watch.advance(),
        share=(ranks.rank, ranks.world),
    )
    # The one between two steps is finished: its figures belong to the step before it, which is saved after it.
    mine = await (asking if watch is None else together(asking, ranks))
    gathered = ranks.gather(mine.asked, f"the held-out questions at step {step}")
    every = sorted((each for theirs in gathered for each in theirs), key=lambda it: it.trajectory.group)
    guards.episodes([each.trajectory for each in every], parts.config.guards)
    return Evaluation(tuple(every))
