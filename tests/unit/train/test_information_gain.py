"""Information gain of searches: contexts, probes of the policy, and the turn rewards of a step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sleuth.agent.protocol import make_protocol
from sleuth.agent.tags import Tags
from sleuth.agent.written_answer import AnswerWriter
from sleuth.config.algorithm import InformationGainConfig, TeacherConfig
from sleuth.model.packing import Row, concatenate
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import (
    Answer,
    Branch,
    Group,
    Outcome,
    Question,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.train.credit import RewardBatch
from sleuth.train.information_gain import Contexts, InformationGain, find_contexts
from sleuth.train.parts import Parts
from sleuth.train.ranks import ALONE
from sleuth.train.sharding import score_rows
from sleuth.train.step import StepRates

QUESTION = Question("q", "Who?", ("Ada", "Ada L", "Ada"), "library")
CPU = torch.device("cpu")


def attempt(
    runs: Sequence[tuple[bool, int]], outcomes: Sequence[Outcome], question: Question = QUESTION, sample: int = 0
) -> Trajectory:
    """An attempt whose tokens are those runs; each run of sampled tokens is a turn with one of these outcomes."""
    sampled = tuple(own for own, count in runs for _ in range(count))
    counts = [count for own, count in runs if own]
    action: dict[Outcome, Answer | ToolCall] = {Outcome.ANSWERED: Answer("Ada"), Outcome.FOUND: ToolCall.search("Ada")}
    turns = tuple(Turn("", action[each], each, count) for each, count in zip(outcomes, counts, strict=True))
    ids = tuple((7 * place + 3) % 50 for place in range(len(sampled)))
    segment = Segment(ids, sampled, (-1.0,) * sum(counts), (0,) * sum(counts))
    return Trajectory(question, 0, sample, 1, (segment,), turns, StopReason.ANSWERED)


FOUND, ANSWERED = Outcome.FOUND, Outcome.ANSWERED
TWICE = attempt(
    [(False, 4), (True, 2), (False, 5), (True, 3), (False, 2), (True, 2)], [FOUND, FOUND, ANSWERED], sample=0
)
NEVER = attempt([(False, 4), (True, 3)], [ANSWERED], sample=1)


def test_contexts_end_before_the_first_turn_and_after_each_search() -> None:
    assert find_contexts([TWICE, NEVER]) == [Contexts((0, 1), (4, 11, 16)), None]


def test_a_search_whose_result_is_shown_last_counts_and_one_without_room_for_it_does_not() -> None:
    shown = attempt([(False, 4), (True, 2), (False, 5)], [FOUND])
    hidden = attempt([(False, 4), (True, 2)], [FOUND])
    assert find_contexts([shown, hidden]) == [Contexts((0,), (4, 11)), Contexts((), (4,))]


def test_a_branch_has_the_contexts_of_its_parent_in_its_prefix() -> None:
    segment = TWICE.segments[0]
    own = replace(segment, sampled=(False,) * 11 + segment.sampled[11:], calls=((1, 3), (2, 2)))
    branch = replace(TWICE, sample=2, segments=(own,), branch=Branch(0, 0, 11))
    assert find_contexts([TWICE, branch]) == [Contexts((0, 1), (4, 11, 16))] * 2
    assert find_contexts([branch]) == [None]


@pytest.mark.parametrize("changes", [{"golden_answers": ()}, {"answerable": False}])
def test_unanswerable_questions_have_no_gain(changes: dict[str, object]) -> None:
    assert find_contexts([replace(TWICE, question=replace(QUESTION, **changes))]) == [None]  # type: ignore[arg-type]


def gain(tokens: Tokens, **settings: object) -> InformationGain:
    config = InformationGainConfig.model_validate({"coefficient": 0.5, **settings})
    return InformationGain(config, AnswerWriter(Tags(), tokens))


@pytest.mark.parametrize("name", ["tags", "rlinf"])
def test_answers_are_written_after_a_closed_thought_and_only_they_are_scored(name: str, tokens: Tokens) -> None:
    writer = AnswerWriter(make_protocol(name, tokens), tokens)
    written = writer.write("Oslo", tokens.encode("Who?"))
    assert tokens.decode(written.ids) == "<think> </think> <answer> Oslo </answer>"
    assert tokens.decode(written.ids[written.first : written.end]).strip() == "Oslo"
    opened = writer.write("Oslo", tokens.encode("\n\n<think>\n"))
    assert tokens.decode(opened.ids) == "</think> <answer> Oslo </answer>"


def test_turn_rewards_are_those_of_probes_scored_apart(policy: Callable[..., Policy]) -> None:
    """And they add up to zero, so that the returns stay as they are."""
    scored: Policy = policy()
    batch = RewardBatch.of([Group(QUESTION, (TWICE, NEVER), (Score(1.0, {}, (0.0, 0.25, 0.0)), Score(0.0, {})))])
    made = gain(scored.tokens)

    def score(rows: Sequence[Row]) -> list[Tensor]:
        return score_rows(rows, 10_000, CPU, ALONE, lambda packed: scored.score(packed, 1.0)[0])

    found, metrics = made.add(batch, score)
    phi = []
    for end in (4, 11, 16):
        values = []
        for answer in ("Ada", "Ada L"):
            written = made.writer.write(answer, TWICE.ids[:end])
            row = Row(
                torch.tensor([*TWICE.ids[:end], *written.ids]),
                torch.arange(end + written.first, end + written.end),
                {},
            )
            values.append(float(scored.score(concatenate([row], [0], CPU), 1.0)[0].mean().exp().detach()))
        phi.append(max(values))
    expected = [0.5 * (phi[1] - phi[0]), 0.25 + 0.5 * (phi[2] - phi[1]), 0.5 * (phi[0] - phi[2])]
    assert found.turns[0] == pytest.approx(expected, abs=1e-6)
    assert list(found.turns[1]) == []
    assert torch.equal(found.rewards_N, batch.rewards_N)
    assert metrics["information_gain/prompt"] == pytest.approx(phi[0], abs=1e-6)
    assert metrics["information_gain/search"] == pytest.approx((phi[2] - phi[0]) / 2, abs=1e-6)
    kept, _ = gain(scored.tokens, terminal="last").add(batch, score)
    assert kept.rewards_N.tolist() == pytest.approx([1.25 + 0.5 * (phi[2] - phi[0]), 0.0], abs=1e-6)


def test_a_step_learns_from_the_gain(
    parts: Callable[..., Parts], tmp_path: Path, policy: Callable[..., Policy]
) -> None:
    """By dr_grpo: equal returns, so only what searches gained gives a direction; a group without scale gives none."""
    for name, moves in (("dr_grpo", True), ("grpo", False)):
        made = parts(tmp_path / name, learning=policy(), algorithm={"advantage": name})
        learner = replace(made.learner, information_gain=gain(made.learner.policy.tokens))
        group = Group(QUESTION, (TWICE, replace(TWICE, sample=1)), (Score(0.0, {}), Score(0.0, {})))
        before = [each.detach().clone() for _, each in learner.policy.parameters()]
        metrics = learner.learn([group], StepRates(1e-3), lambda _: True, recompute=True)
        assert metrics["information_gain/search"] != 0.0
        changed = [not torch.equal(old, new) for old, (_, new) in zip(before, learner.policy.parameters(), strict=True)]
        assert any(changed) == moves


def test_gain_does_not_turn_a_failed_episode_into_a_successful_one(
    parts: Callable[..., Parts], tmp_path: Path, policy: Callable[..., Policy]
) -> None:
    """For the teacher, success is the return before the gain, which `terminal = "last"` adds to the reward."""
    made = parts(tmp_path / "run", learning=policy(), algorithm={"advantage": "dr_grpo"})
    guided = made.config.algorithm.model_copy(update={"teacher": TeacherConfig(policy="t", reward_below=0.1)})
    added = gain(made.learner.policy.tokens, coefficient=1e6, terminal="last")  # more than what the returns differ by
    learner = replace(made.learner, algorithm=guided, teacher=policy(1), information_gain=added)
    group = Group(QUESTION, (TWICE, replace(TWICE, sample=1)), (Score(0.0, {}), Score(1.0, {})))
    metrics = learner.learn([group], StepRates(0.0), lambda _: True, recompute=True)
    assert metrics["information_gain/search"] != 0.0
    assert metrics["teacher/failed"] == 0.5
