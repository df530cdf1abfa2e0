"""What the policy is kept near: how it was before training."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sleuth.train.packing import Pack
from sleuth.train.policy import Policy


class Reference(Protocol):
    """Scores packs as a policy that never changes."""

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob and entropy at each scored token of a pack."""
        ...


@dataclass(frozen=True, slots=True)
class WithoutAdapter:
    """The policy itself with its adapter left out: no second copy of the weights."""

    policy: Policy

    def score(self, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
        with self.policy.without_adapter():
            return self.policy.score(pack, temperature)
