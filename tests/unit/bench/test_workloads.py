"""Workloads have the requested sizes and new random tokens."""

from random import Random

import pytest

from sleuth.bench.workloads import Episode, Job, Sizes, Workload, jobs

VOCABULARY = 1000
SIZES = Sizes(group=4, prompt=30, new=7, observation=11)


def lengths(episode: Episode) -> list[tuple[int, int]]:
    return [(len(turn.given), turn.sampled) for turn in episode]


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (Workload.SINGLE, [(30, 7)]),
        (Workload.GROUPS, [(30, 7)]),
        (Workload.TURNS, [(30, 7), (11, 7)]),
    ],
)
def test_counts(workload: Workload, expected: list[tuple[int, int]]) -> None:
    job = Job(workload, 10, SIZES)
    episodes = job.episodes(VOCABULARY, Random(0))
    assert [lengths(episode) for episode in episodes] == [expected] * 10
    assert job.sampled == sum(turn.sampled for episode in episodes for turn in episode)
    assert job.context == sum(given + sampled for given, sampled in expected)
    assert all(0 <= token < VOCABULARY for episode in episodes for turn in episode for token in turn.given)


@pytest.mark.parametrize("workload", Workload)
def test_every_repetition_is_of_fresh_tokens(workload: Workload) -> None:
    dice = Random(0)
    job = Job(workload, 6, SIZES)
    first, second = job.episodes(VOCABULARY, dice), job.episodes(VOCABULARY, dice)
    assert not {turn.given for episode in first for turn in episode} & {
        turn.given for episode in second for turn in episode
    }


def test_groups_share_prompts() -> None:
    grouped = Job(Workload.GROUPS, 10, SIZES).episodes(VOCABULARY, Random(0))
    prompts = [episode[0].given for episode in grouped]
    assert [prompts.index(prompt) for prompt in prompts] == [0] * 4 + [4] * 4 + [8] * 2
    alone = Job(Workload.SINGLE, 10, SIZES).episodes(VOCABULARY, Random(0))
    assert len({episode[0].given for episode in alone}) == 10


def test_warm_up_samples_less_and_never_more() -> None:
    job = Job(Workload.TURNS, 3, SIZES)
    assert lengths(job.shortened(2).episodes(VOCABULARY, Random(0))[0]) == [(30, 2), (11, 2)]
    assert job.shortened(100) == job


def test_jobs_are_sorted_and_unique() -> None:
    asked = jobs([Workload.SINGLE, Workload.TURNS], [8, 4, 8], SIZES)
    assert [(job.workload, job.concurrent) for job in asked] == [
        (Workload.SINGLE, 4),
        (Workload.SINGLE, 8),
        (Workload.TURNS, 4),
        (Workload.TURNS, 8),
    ]
