"""The account of tokens refuses what does not add up."""

import pytest

from sleuth.agent.ledger import Ledger
from sleuth.engines.base import Completion, Finish


def test_given_and_sampled() -> None:
    ledger = Ledger()
    ledger.given([1, 2])
    ledger.sampled(Completion((3, 4), (-0.1, -0.2), (7, 8), Finish.STOP))
    ledger.given([5])
    assert ledger.ids == (1, 2, 3, 4, 5)
    assert ledger.origin == (False, False, True, True, False)
    assert (ledger.logprobs, ledger.versions) == ((-0.1, -0.2), (7, 8))
    assert len(ledger) == 5


@pytest.mark.parametrize(
    ("logprobs", "versions"), [((-0.1,), (0, 0)), ((-0.1, -0.2), (0,)), ((-0.1,) * 3, (0, 0)), ((), ())]
)
def test_an_uneven_completion_is_refused_and_leaves_no_trace(
    logprobs: tuple[float, ...], versions: tuple[int, ...]
) -> None:
    ledger = Ledger()
    ledger.given([1])
    with pytest.raises(ValueError, match="has 2 tokens"):
        ledger.sampled(Completion((3, 4), logprobs, versions, Finish.STOP))
    assert (ledger.ids, ledger.origin, ledger.logprobs, ledger.versions) == ((1,), (False,), (), ())
