"""The token record of an episode: origin, logprob and weights version of every token."""

from collections.abc import Sequence

from sleuth.engines.base import Completion


class Ledger:
    """Append-only: `given` and `sampled` are the only ways in, so masks and logprobs stay aligned."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def given(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample."""
        self._ids.extend(ids)
        self._sampled.extend([False] * len(ids))

    def sampled(self, completion: Completion) -> None:
        """Append tokens exactly as the engine sampled them."""
        count = len(completion.ids)
        if not count == len(completion.logprobs) == len(completion.versions):
            raise ValueError(
                f"the completion has {count} tokens, {len(completion.logprobs)} logprobs and "
                f"{len(completion.versions)} versions; expected one logprob and one version per token"
            )
        self._ids.extend(completion.ids)
        self._sampled.extend([True] * count)
        self._logprobs.extend(completion.logprobs)
        self._versions.extend(completion.versions)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def origin(self) -> tuple[bool, ...]:
        """True for exactly the sampled tokens."""
        return tuple(self._sampled)

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(self._logprobs)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(self._versions)
