"""What a step that is measured is made of."""

from dataclasses import dataclass
from math import ceil

from sleuth.errors import InputError


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and lengths of a step: `update` is the most trajectories of one change of the weights, lengths are tokens.

    The step is measured `steps` times, after one of `warmup` questions which is not; no question comes twice.
    """

    questions: int = 512
    samples: int = 5
    searches: int = 2
    prompt_tokens: int = 180
    turn_tokens: int = 80
    observation_tokens: int = 240
    update: int = 256
    kl: bool = True
    lora: int = 0
    recompute: float = 0.0
    pack_tokens: int = 16_384
    slots: int = 1024
    engine_memory: float = 0.2
    warmup: int = 16
    steps: int = 1
    passages: int = 20_000

    def __post_init__(self) -> None:
        if self.update < self.samples:
            raise InputError(
                f"updates of {self.update} trajectories are smaller than a group of {self.samples}; raise --update"
            )

    @property
    def asked(self) -> int:
        """Questions in all, those to warm up with among them."""
        return self.warmup + self.steps * self.questions

    @property
    def sampled(self) -> int:
        """Tokens sampled in an episode."""
        return self.turn_tokens * (self.searches + 1)

    def context(self, prompt: int) -> int:
        """Tokens of an episode at most, after a prompt of so many."""
        return prompt + self.sampled + self.searches * self.observation_tokens

    def updates(self, trajectories: int) -> int:
        """Changes of the weights in a step of so many."""
        return ceil(trajectories / self.update)
