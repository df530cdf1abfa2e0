"""The loop: what it records, what it repeats exactly, and what ends it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.config import RewardConfig
from sleuth.errors import SearchUnavailable, TrainingStopped
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, StopReason, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs import Run, read_rows
from sleuth.train.assemble import Parts
from sleuth.train.loop import Outcome, group, train
from sleuth.train.policy import Policy
from sleuth.train.watch import Silent

Making = Callable[..., Parts]


class Failing:
    """A retriever that is down, from the first query on or after some."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self._left -= len(queries)
        return [SearchUnavailable(query, "it is down") if self._left < 0 else [] for query in queries]


def trained(made: Parts) -> Outcome:
    return train(made, Silent(), 0.0)


def recorded(run: Run) -> list[dict[str, Any]]:
    """The metrics less the timings, which no two runs share."""
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in run.metrics()]


def weights(run: Run) -> bytes:
    latest = run.latest()
    assert latest is not None
    return (latest / "model.safetensors").read_bytes()


def test_group_holds_the_usable_samples_of_a_question(trajectory: Callable[..., Trajectory]) -> None:
    lost = trajectory(stop=StopReason.SEARCH_UNAVAILABLE, group=1)
    broken = trajectory(stop=StopReason.ENGINE_FAILED)
    kept = [trajectory(group=number, stop=StopReason.OUT_OF_TURNS) for number in (0, 1, 0)]
    found = group([kept[0], lost, broken, *kept[1:], trajectory(group=2, stop=lost.stop)], Rubric(RewardConfig()))
    assert [each.trajectories for each in found] == [(kept[0], kept[2]), (kept[1],), ()]
    assert [len(each.scores) for each in found] == [2, 1, 0]


def test_run_records_every_step_and_saves_on_time(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged})
    outcome = trained(made)
    rows = list(made.run.metrics())
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["evaluate/questions"] == 3
    assert [path.name for path in made.run.checkpoints()] == ["step-2", "step-3"]
    for row in rows[1:]:
        assert row["group/with_spread"] > 0
        assert row["policy/gradient_norm"] > 0
        assert row["policy/ratio"] == pytest.approx(1.0, abs=1e-3)
        assert sum(row[f"stop/{reason.value}"] for reason in StopReason) == 1.0
        written = list(read_rows(made.run.trajectories(row["step"])))
        assert len(written) == 6
        assert {each["step"] for each in written} == {row["step"]}
        assert {version for each in written for version in each["weights_versions"]} == {row["step"] - 1}
        assert sum(each["score"]["total"] for each in written) / 6 == pytest.approx(row["reward/mean"])
        assert sum(len(each["ids"]) for each in written) == row["episode/tokens_all"]
    assert outcome.progress.step == 3
    assert outcome.progress.tokens == sum(row["episode/tokens_all"] for row in rows[1:])
    assert len(outcome.before.greedy.asked) == len(outcome.after.sampled.asked) == 3


def test_same_seed_gives_the_same_run_and_another_does_not(parts: Making, tmp_path: Path, judged: str) -> None:
    made = [parts(tmp_path / name, reward={"answer": judged}) for name in ("first", "second")]
    made.append(parts(tmp_path / "third", reward={"answer": judged}, train={"seed": 1}))
    for each in made:
        trained(each)
    assert recorded(made[0].run) == recorded(made[1].run) != recorded(made[2].run)
    assert weights(made[0].run) == weights(made[1].run) != weights(made[2].run)


@pytest.mark.parametrize(("cut", "algorithm"), [(1, {}), (3, {"kl": {"place": "loss"}})], ids=str)
def test_resumed_run_equals_an_uninterrupted_one(
    cut: int, algorithm: dict[str, Any], parts: Making, tmp_path: Path, judged: str
) -> None:
    """It is cut short by training fewer steps, the last of which is always saved, and goes on with more."""
    settings: dict[str, Any] = {"reward": {"answer": judged}, "algorithm": algorithm}
    steps = {"questions": 2, "samples": 3, "learning_rate": 1e-3, "updates": 2}
    whole = parts(tmp_path / "whole", **settings, train={**steps, "steps": 4})
    trained(whole)
    trained(parts(tmp_path / "cut", **settings, train={**steps, "steps": cut}))
    # What was recorded after the last checkpoint is recorded again.
    Run.open(tmp_path / "cut").append_metrics(cut + 1, {"lost": True})
    resumed = parts(tmp_path / "cut", **settings, train={**steps, "steps": 4})
    trained(resumed)
    assert recorded(resumed.run) == recorded(whole.run)
    assert weights(resumed.run) == weights(whole.run)


def test_resuming_a_finished_run_only_measures_again(parts: Making, tmp_path: Path, judged: str) -> None:
    first = trained(made := parts(tmp_path / "run", reward={"answer": judged}))
    before, saved = recorded(made.run), weights(made.run)
    again = trained(parts(tmp_path / "run", reward={"answer": judged}))
    assert (again.before, again.after) == (first.before, first.after)
    assert (recorded(made.run), weights(made.run)) == (before, saved)


def test_evaluations_on_the_way_change_nothing_but_the_record(parts: Making, tmp_path: Path, judged: str) -> None:
    plain = parts(tmp_path / "plain", reward={"answer": judged})
    asking = parts(tmp_path / "asking", reward={"answer": judged}, evaluate={"every": 1})
    for each in (plain, asking):
        trained(each)
    assert ["evaluate/em" in row for row in recorded(asking.run)] == [True, True, True, False]
    kept = [
        {name: value for name, value in row.items() if row["step"] == 0 or not name.startswith("evaluate/")}
        for row in recorded(asking.run)
    ]
    assert kept == recorded(plain.run)
    assert weights(plain.run) == weights(asking.run)


def test_one_sample_a_question_is_compared_with_the_batch(parts: Making, tmp_path: Path, judged: str) -> None:
    settings = {"steps": 2, "questions": 4, "samples": 1, "learning_rate": 1e-3}
    made = parts(tmp_path / "run", reward={"answer": judged}, algorithm={"advantage": "reinforce"}, train=settings)
    trained(made)
    for row in recorded(made.run)[1:]:
        assert row["group/dropped"] == 0
        assert row["policy/gradient_norm"] > 0


def test_steps_without_spread_change_no_weights(parts: Making, tmp_path: Path) -> None:
    """A policy drawn at random answers nothing, so every reward is zero."""
    made = parts(tmp_path / "run")
    before = [parameter.detach().clone() for parameter in made.learner.policy.model.parameters()]
    trained(made)
    after = list(made.learner.policy.model.parameters())
    assert all(torch.equal(first, second) for first, second in zip(before, after, strict=True))
    assert [row["group/with_spread"] for row in recorded(made.run)[1:]] == [0.0] * 3
    assert not any("policy/entropy" in row for row in recorded(made.run))


@pytest.fixture
def searching(reciter: Callable[..., PreTrainedModel], tokens: Tokens) -> Callable[[], Policy]:
    """Makes a policy that always searches for Ada, whatever it has read."""
    pieces = {text: number for number, text in enumerate(tokens.texts())}
    spoken = ["<search>", " Ada", " </search>"]
    assert set(spoken) <= set(pieces)
    raw = [tokens.tokenizer.convert_ids_to_tokens(pieces[text]) for text in spoken]
    ends = [tokens.tokenizer.convert_ids_to_tokens(ids[-1]) for ids in (tokens.encode("?\n"), tokens.encode(">\n\n"))]
    return lambda: Policy(reciter(tokens, [[end, *raw] for end in ends]), tokens)


def test_failed_searches_end_the_run_before_they_teach(
    searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    asked_before = 2 * 3
    made = parts(tmp_path / "run", learning=searching(), retriever=Failing(after=asked_before))
    with pytest.raises(TrainingStopped, match="100% of the episodes were lost to failed searches, more than 5%"):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0]
    assert made.run.checkpoints() == []


def test_held_out_questions_that_are_all_lost_end_the_run(
    searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    settings = {"steps": 1, "search_failures": 1.0}
    made = parts(tmp_path / "run", learning=searching(), retriever=Failing(), train=settings)
    with pytest.raises(TrainingStopped, match=r"no episode was usable \(3 search_unavailable\)"):
        trained(made)
    assert list(made.run.metrics()) == []


def test_policy_that_is_broken_ends_the_run(parts: Making, tmp_path: Path, policy: Callable[..., Policy]) -> None:
    broken = policy()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingStopped, match=r"not finite; .* a lower train\.learning_rate"):
        trained(parts(tmp_path / "run", learning=broken))


def test_metric_of_the_users_own_that_is_no_number_ends_the_run(parts: Making, tmp_path: Path, judged: str) -> None:
    code = (
        "from sleuth.algorithms.loss import TokenLoss, clipped\n"
        "def broken(logprob_T, *others):\n"
        "    made = clipped(logprob_T, *others)\n"
        "    return TokenLoss(made.value_T, {'surprise': logprob_T.detach() / 0})\n"
    )
    (tmp_path / "loss_with_a_hole.py").write_text(code)
    settings = {"loss": "import:loss_with_a_hole.broken"}
    made = parts(tmp_path / "run", reward={"answer": judged}, algorithm=settings)
    with pytest.raises(TrainingStopped, match="policy/surprise is -inf"):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0]
