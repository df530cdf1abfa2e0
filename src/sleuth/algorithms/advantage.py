"""How much better a trajectory was than what it is compared with.

_N trajectories. An advantage takes the reward of each trajectory, and the key of its group: any integers in any order.
"""

from collections.abc import Callable

from torch import Tensor

from sleuth.algorithms.advantages.dr_grpo import dr_grpo
from sleuth.algorithms.advantages.grpo import grpo
from sleuth.algorithms.advantages.reinforce import reinforce
from sleuth.algorithms.advantages.reinforce_pp import reinforce_pp
from sleuth.algorithms.advantages.rloo import rloo

Advantage = Callable[[Tensor, Tensor], Tensor]

ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "reinforce_pp": reinforce_pp,
}
