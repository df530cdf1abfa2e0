"""Finished groups on disk: read as they were written, complete rows only, removed when a checkpoint has them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import (
    Answer,
    Hit,
    Malformed,
    Outcome,
    Passage,
    Question,
    Score,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.runs.json_files import read_rows
from sleuth.runs.trajectory import trajectory_row
from sleuth.train.data import QuestionStream
from sleuth.train.group_log import GroupLog
from sleuth.train.group_queue import QueuedGroup, SampledGroup

QUESTIONS = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library") for n in range(5)]
STREAM = QuestionStream(QUESTIONS, 0, shuffle=False)
TURNS = (
    Turn("a", ToolCall.search("who"), Outcome.FOUND, 2, (Hit(Passage("p", '"Ada"\nAda wrote.'), 1.5),), (1,)),
    Turn("b", Malformed("no tag"), Outcome.CORRECTED, 1, formed=False),
    Turn("c", Answer("Ada"), Outcome.ANSWERED, 1),
)
Make = Callable[..., Trajectory]


def sampled(trajectory: Make, position: int) -> SampledGroup:
    asked = replace(trajectory(logprobs=(-0.1, -1 / 3), group=position), question=QUESTIONS[position])
    right = replace(asked, turns=TURNS)
    lost = replace(asked, stop=StopReason.ENGINE_FAILED, sample=1, failure="down", segments=())
    score = Score(0.25, {"em": 1.0}, (0.5, 0.25))
    return SampledGroup(position, (ScoredTrajectory(right, score), ScoredTrajectory(lost, None)))


def queued(trajectory: Make, *positions: int, version: int = 0) -> QueuedGroup:
    return QueuedGroup(positions[0], version, [sampled(trajectory, position) for position in positions])


def write(log: GroupLog, *groups: QueuedGroup) -> None:
    for group in groups:
        for attempt in group.attempts:
            log.append_group(group, attempt)


def opened(folder: Path) -> GroupLog:
    log = GroupLog(folder)
    log.load(STREAM)
    return log


def test_groups_are_read_as_they_were_written(tmp_path: Path, trajectory: Make) -> None:
    log = opened(tmp_path / "buffer")
    replaced, plain = queued(trajectory, 0, 3, version=4), queued(trajectory, 1, version=5)
    write(log, replaced, plain)
    log.append_step(6, [1, 0])
    found = GroupLog(tmp_path / "buffer").load(STREAM)
    assert found.steps == {6: [1, 0]}
    assert [(each.id, each.version) for each in found.groups.values()] == [(0, 4), (1, 5)]
    for group in (replaced, plain):
        again = found.groups[group.id]
        assert again.positions == group.positions
        for mine, theirs in zip(again.attempts, group.attempts, strict=True):
            assert [each.score for each in mine.samples] == [each.score for each in theirs.samples]
            assert [each.trajectory.segments for each in mine.samples] == [
                each.trajectory.segments for each in theirs.samples
            ]
            rows = [[trajectory_row(each.trajectory, each.score) for each in side.samples] for side in (mine, theirs)]
            assert rows[0] == rows[1]
            assert mine.samples[0].trajectory.question is QUESTIONS[mine.position]
    assert found.groups[0].has_failures


def test_row_cut_by_a_kill_is_skipped_and_later_rows_go_to_another_file(tmp_path: Path, trajectory: Make) -> None:
    log = opened(tmp_path)
    write(log, queued(trajectory, 0), queued(trajectory, 1))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    again = GroupLog(tmp_path)
    assert list(again.load(STREAM).groups) == [0]
    write(again, queued(trajectory, 1))
    assert list(GroupLog(tmp_path).load(STREAM).groups) == [0, 1]


def test_group_that_was_dropped_can_be_written_again(tmp_path: Path, trajectory: Make) -> None:
    log = opened(tmp_path)
    write(log, queued(trajectory, 0, 1), queued(trajectory, 2))
    log.append_dropped({0})
    assert list(GroupLog(tmp_path).load(STREAM).groups) == [2]
    write(log, queued(trajectory, 1), queued(trajectory, 0))
    assert [group.positions for group in GroupLog(tmp_path).load(STREAM).groups.values()] == [[2], [1], [0]]


def test_files_go_when_a_checkpoint_has_all_their_groups(tmp_path: Path, trajectory: Make) -> None:
    log = opened(tmp_path)
    write(log, queued(trajectory, 0), queued(trajectory, 1), queued(trajectory, 2))
    log.append_step(1, [0, 2])
    log.prune(1)
    assert len(list(tmp_path.iterdir())) == 1  # the group 1 is in no step
    write(log, queued(trajectory, 3))
    log.append_step(2, [1])
    log.prune(1)
    assert len(list(tmp_path.iterdir())) == 2
    log.prune(2)
    (left,) = tmp_path.iterdir()  # the group 3 is in no step
    assert [row.get("position") for row in read_rows(left)] == [3, None]
    log.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ['{"id": 0}', '{"id": 0, "version": 0, "position": 0, "samples": [{}]}'])
def test_damaged_row_is_named(line: str, tmp_path: Path, trajectory: Make) -> None:
    write(opened(tmp_path), queued(trajectory, 0))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"groups-1\.jsonl, line 2 .* remove it"):
        GroupLog(tmp_path).load(STREAM)
