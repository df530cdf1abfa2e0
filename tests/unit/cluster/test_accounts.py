"""Every task is counted once, whatever happens to its attempts."""

from hypothesis import given
from hypothesis import strategies as st

from sleuth.cluster.accounts import Accounts


def test_a_lost_attempt_is_asked_again_and_counted_once() -> None:
    accounts = Accounts()
    first = accounts.ask()
    second = accounts.ask_again(first)
    assert not accounts.finish(first)  # a late result of the lost worker
    assert accounts.finish(second)
    assert not accounts.finish(second)
    assert accounts.collect() == {"asked": 1, "finished": 1, "retried": 1, "lost": 1, "cancelled": 0}
    assert set(accounts.collect().values()) == {0}


@given(st.lists(st.sampled_from(["ask", "lose", "finish", "cancel", "late"]), max_size=60))
def test_asked_is_finished_and_cancelled_and_open(events: list[str]) -> None:
    accounts = Accounts()
    current: list[int] = []
    replaced: list[int] = []
    for event in events:
        if event == "ask":
            current.append(accounts.ask())
        elif event == "late" and replaced:
            assert not accounts.finish(replaced[-1])
        elif current:
            attempt = current.pop()
            if event == "lose":
                replaced.append(attempt)
                current.insert(0, accounts.ask_again(attempt))
            elif event == "finish":
                assert accounts.finish(attempt)
            else:
                accounts.cancel(attempt)
    counts, left = accounts.collect(), accounts.open
    assert counts["asked"] == counts["finished"] + counts["cancelled"] + left
    assert counts["lost"] == counts["retried"]
