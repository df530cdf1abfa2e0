"""The policy loss of each sampled token, before any mean is taken: what the trainer knows of losses."""

from collections.abc import Callable

from sleuth.algorithms.losses.cispo import cispo
from sleuth.algorithms.losses.clipped import clipped
from sleuth.algorithms.losses.gspo import gspo
from sleuth.algorithms.losses.tokens import Bounds, Sampled, TokenLoss
from sleuth.algorithms.ratio import LOG_RATIO_BOUND

__all__ = ["LOG_RATIO_BOUND", "LOSSES", "Bounds", "PolicyLoss", "Sampled", "TokenLoss", "cispo", "clipped", "gspo"]

PolicyLoss = Callable[[Sampled, Bounds], TokenLoss]

LOSSES: dict[str, PolicyLoss] = {"clipped": clipped, "gspo": gspo, "cispo": cispo}
