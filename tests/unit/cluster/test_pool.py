"""The least loaded worker that is up is asked next; the samples of a question stay together."""

from sleuth.cluster.actor import Greeting
from sleuth.cluster.pool import Member, WorkerPool


def pool_of(count: int, limit: int = 2, first: int = 0) -> tuple[WorkerPool, list[Member]]:
    members = [Member(number, None, Greeting("127.0.0.1", 1, None, ())) for number in range(count)]
    pool = WorkerPool(members, limit, first)
    for member in members:
        pool.mark_up(member)
    return pool, members


def test_least_loaded_worker_is_claimed_until_all_are_full() -> None:
    pool, members = pool_of(2)
    assert [pool.claim() for _ in range(5)] == [members[0], members[1], members[0], members[1], None]
    pool.release(members[1])
    assert pool.claim() is members[1]


def test_preferred_worker_is_claimed_while_it_has_room() -> None:
    pool, members = pool_of(2)
    assert [pool.claim(members[1]) for _ in range(3)] == [members[1], members[1], members[0]]


def test_lost_worker_is_not_claimed_until_it_is_back() -> None:
    pool, members = pool_of(2)
    pool.mark_down(members[0])
    assert pool.claim(members[0]) is members[1]
    assert pool.current_members() == (members[1],)
    assert pool.seconds_down == 0
    pool.mark_down(members[1])
    assert pool.claim() is None
    assert pool.seconds_down > 0
    pool.mark_up(members[0])
    assert pool.claim() is members[0]
    assert pool.seconds_down == 0


def test_ranks_begin_with_different_workers() -> None:
    pool, members = pool_of(3, first=1)
    assert [pool.claim() for _ in range(3)] == [members[1], members[2], members[0]]
