"""The queue of asynchronous training by hand: who may start, and whom a step takes or waits for."""

from sleuth.train.group_queue import GroupQueue, QueuedGroup


def queue_of(questions: int, staleness: int, *versions: int) -> tuple[GroupQueue, list[QueuedGroup]]:
    queue, groups = GroupQueue(questions, staleness), [QueuedGroup(place, each) for place, each in enumerate(versions)]
    for group in groups:
        queue.add(group)
    return queue, groups


def test_as_many_groups_start_as_the_bound_allows() -> None:
    queue = GroupQueue(2, 2)
    assert queue.room(steps_left=9) == 6
    assert queue.room(steps_left=2) == 4
    for place in range(4):
        queue.add(QueuedGroup(place, 0))
    assert queue.room(steps_left=9) == 2
    assert queue.room(steps_left=1) == 0


def test_groups_in_training_count_until_their_step_is_done() -> None:
    queue, groups = queue_of(2, 0, 0, 0)
    for group in groups:
        queue.finish(group)
    assert queue.take(0) == groups
    assert queue.room(9) == 0
    queue.training = 0
    assert queue.room(9) == 2


def test_step_takes_the_oldest_version_first_then_the_first_to_finish() -> None:
    queue, (slow, late, early, old) = queue_of(2, 2, 1, 1, 1, 0)
    queue.finish(early)
    assert queue.take(1) is None  # too few
    queue.finish(late)
    queue.finish(old)
    assert queue.ready == 3
    assert queue.take(1) == [old, early]
    assert [*queue.groups] == [slow, late]


def test_step_waits_for_a_group_that_the_next_step_could_not_take() -> None:
    queue, (slow, first, second) = queue_of(2, 1, 0, 1, 1)
    queue.finish(first)
    queue.finish(second)
    assert queue.take(1) is None
    queue.finish(slow)
    assert queue.take(1) == [slow, first]


def test_step_waits_before_too_many_groups_are_due_at_once() -> None:
    """Three groups of version 0 remain for two places of the last step that may take them."""
    queue, groups = queue_of(2, 2, 0, 0, 0, 1, 1)
    for group in groups[3:]:
        queue.finish(group)
    assert queue.take(1) is None
    queue.finish(groups[2])
    assert queue.take(1) == [groups[2], groups[3]]
