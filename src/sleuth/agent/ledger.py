"""The token record of an episode: origin, logprob and weights version of every token."""

from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.engines.base import Completion
from sleuth.records import Segment


@dataclass(slots=True)
class Ledger:
    """Append-only token record; tokens are added only by `given` and `sampled`, so masks and logprobs stay aligned."""

    ids: tuple[int, ...] = ()
    origin: tuple[bool, ...] = ()  # True for exactly the sampled tokens
    logprobs: tuple[float, ...] = ()  # one per sampled token, like `versions`
    versions: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def given(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample."""
        self.ids += tuple(ids)
        self.origin += (False,) * len(ids)

    def sampled(self, completion: Completion) -> None:
        """Append tokens exactly as the engine sampled them."""
        count = len(completion.ids)
        if not count == len(completion.logprobs) == len(completion.versions):
            raise ValueError(
                f"the completion has {count} tokens, {len(completion.logprobs)} logprobs and "
                f"{len(completion.versions)} versions; expected one logprob and one version per token"
            )
        self.ids += tuple(completion.ids)
        self.origin += (True,) * count
        self.logprobs += tuple(completion.logprobs)
        self.versions += tuple(completion.versions)

    def segment(self) -> Segment:
        return Segment(self.ids, self.origin, self.logprobs, self.versions)
