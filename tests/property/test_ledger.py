"""The account of tokens whatever comes in: the mask is true on exactly the sampled ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.agent.ledger import Ledger
from sleuth.engines.base import Completion, Finish

QUICK = settings(max_examples=60, deadline=None)

TOKENS = st.lists(st.integers(0, 1000), max_size=6)
LOGPROBS = st.floats(-50, 0)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(TOKENS)
    count = len(ids)
    logprobs = draw(st.lists(LOGPROBS, min_size=count, max_size=count))
    versions = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return Completion(tuple(ids), tuple(logprobs), tuple(versions), Finish.STOP)


@QUICK
@given(st.lists(TOKENS | completions(), max_size=8))
def test_the_account_is_the_sum_of_what_came_in(entries: list[list[int] | Completion]) -> None:
    ledger = Ledger()
    expected: list[tuple[int, bool]] = []
    for entry in entries:
        before = ledger.ids
        if isinstance(entry, Completion):
            ledger.sampled(entry)
            expected += [(token, True) for token in entry.ids]
        else:
            ledger.given(entry)
            expected += [(token, False) for token in entry]
        assert ledger.ids[: len(before)] == before
    assert list(zip(ledger.ids, ledger.origin, strict=True)) == expected
    sampled = [entry for entry in entries if isinstance(entry, Completion)]
    assert ledger.logprobs == tuple(logprob for entry in sampled for logprob in entry.logprobs)
    assert ledger.versions == tuple(version for entry in sampled for version in entry.versions)
    assert sum(ledger.origin) == len(ledger.logprobs) == len(ledger.versions)
    assert len(ledger) == len(ledger.ids) == len(ledger.origin)


@QUICK
@given(TOKENS, st.lists(LOGPROBS, max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_only_even_completions_come_in(ids: list[int], logprobs: list[float], versions: list[int]) -> None:
    ledger = Ledger()
    try:
        ledger.sampled(Completion(tuple(ids), tuple(logprobs), tuple(versions), Finish.LENGTH))
    except ValueError:
        assert not len(ids) == len(logprobs) == len(versions)
        assert (len(ledger), ledger.logprobs, ledger.versions) == (0, (), ())
    else:
        assert len(ids) == len(logprobs) == len(versions) == len(ledger)
