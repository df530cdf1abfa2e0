"""The loop: what it records, what it repeats exactly, and what ends it."""

import asyncio
import math
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from sleuth.agent.episode import Agent
from sleuth.config.reward import RewardConfig
from sleuth.engines.base import NOT_FINITE, Completion, Engine, OnTokens, Sampling, Session
from sleuth.errors import EngineFailure, InputError, SearchUnavailable, TrainingStopped
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, StopReason, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.json_files import read_json, read_rows
from sleuth.runs.run import Run
from sleuth.train.held_out import evaluate_held_out
from sleuth.train.loop import Outcome, train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.rollout import group_by_question

Making = Callable[..., Parts]

UNASKED = {"before": False, "after": False}
# Metrics that no two runs share.
TIMED = ("time/", "speed/", "memory/", "search/latency")


class Told(SilentObserver):
    """A observer that remembers what a person should read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


class Failing:
    """A retriever that is down, from the first query on or after some."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self._left -= len(queries)
        return [SearchUnavailable(query, "it is down") if self._left < 0 else [] for query in queries]


def trained(made: Parts) -> Outcome:
    return train(made, SilentObserver(), 0.0)


def recorded(run: Run) -> list[dict[str, Any]]:
    """The metrics less the timings, which no two runs share."""
    return [{name: value for name, value in row.items() if not name.startswith(TIMED)} for row in run.metrics()]


def weights(run: Run, step: int | None = None) -> bytes:
    folder = run.latest() if step is None else run.checkpoint(step)
    assert folder is not None
    return (folder / "model.safetensors").read_bytes()


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def progress(run: Run, step: int) -> dict[str, Any]:
    """How far the run was in a checkpoint."""
    return read_json(run.checkpoint(step) / "trainer" / "progress.json")


def asked(run: Run) -> list[list[str]]:
    """The questions of each step, in the order they were asked."""
    steps = [row["step"] for row in run.metrics()][1:]
    return [[row["question_id"] for row in read_rows(run.trajectories(step))] for step in steps]


def test_group_holds_the_usable_samples_of_a_question(trajectory: Callable[..., Trajectory]) -> None:
    lost = trajectory(stop=StopReason.SEARCH_UNAVAILABLE, group=1)
    broken = trajectory(stop=StopReason.ENGINE_FAILED)
    kept = [trajectory(group=number, stop=StopReason.OUT_OF_TURNS) for number in (0, 1, 0)]
    every = [kept[0], lost, broken, *kept[1:], trajectory(group=2, stop=lost.stop)]
    scored = asyncio.run(Rubric(RewardConfig()).score_all(every))
    found = group_by_question([ScoredTrajectory(*each) for each in scored])
    assert [each.trajectories for each in found] == [(kept[0], kept[2]), (kept[1],), ()]
    assert [len(each.scores) for each in found] == [2, 1, 0]


def test_run_records_every_step_and_saves_on_time(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged})
    outcome = trained(made)
    rows = list(made.run.metrics())
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["evaluate/questions"] == 3
    assert [path.name for path in made.run.checkpoints()] == ["step-0", "step-2", "step-3"]
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
    assert outcome.before is not None
    assert outcome.after is not None
    assert len(outcome.before.greedy.results) == len(outcome.after.sampled.results) == 3


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file can grow beyond what the records of a few steps take."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_checkpoint_that_cannot_be_written_ends_the_run_at_once(parts: Making, tmp_path: Path, judged: str) -> None:
    """And not when the next is due, with every step until then lost."""
    made = parts(tmp_path / "run", reward={"answer": judged}, train={"steps": 9, "save_every": 9}, evaluate=UNASKED)
    with pytest.raises(InputError, match="step-0 cannot be written: it exceeds the file size limit"):
        trained(made)
    assert len(list(made.run.metrics())) < 9


def test_same_seed_gives_the_same_run_and_another_does_not(parts: Making, tmp_path: Path, judged: str) -> None:
    tables = {"reward": {"answer": judged}, "evaluate": UNASKED}
    made = [parts(tmp_path / name, **tables) for name in ("first", "second")]
    made.append(parts(tmp_path / "third", **tables, train={"seed": 1}))
    for each in made:
        trained(each)
    assert recorded(made[0].run) == recorded(made[1].run) != recorded(made[2].run)
    assert weights(made[0].run) == weights(made[1].run) != weights(made[2].run)


RESUMED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "grpo": (1, {}, {}),
    "a weight of KL that adapts": (3, {"kl": {"place": "loss", "target": 0.01, "horizon": 6}}, {}),
    "groups without spread replaced": (1, {}, {"resample": 1}),
    "a critic": (2, {"advantage": "gae", "critic": {"warmup": 1, "learning_rate": 1e-3}}, {}),
}


@pytest.mark.parametrize(("cut", "algorithm", "more"), RESUMED.values(), ids=RESUMED)
def test_resumed_run_equals_an_uninterrupted_one(
    cut: int, algorithm: dict[str, Any], more: dict[str, Any], parts: Making, tmp_path: Path, judged: str
) -> None:
    """It is cut short by training fewer steps, the last of which is always saved, and goes on with more."""
    settings: dict[str, Any] = {"reward": {"answer": judged}, "algorithm": algorithm, "evaluate": UNASKED}
    steps = {"questions": 2, "samples": 3, "learning_rate": 1e-3, "updates": 2, **more}
    whole = parts(tmp_path / "whole", **settings, train={**steps, "steps": 4})
    trained(whole)
    trained(parts(tmp_path / "cut", **settings, train={**steps, "steps": cut}))
    # What was recorded after the last checkpoint is recorded again.
    Run.open(tmp_path / "cut").append_metrics(cut + 1, {"lost": True})
    resumed = parts(tmp_path / "cut", **settings, train={**steps, "steps": 4})
    trained(resumed)
    assert recorded(resumed.run) == recorded(whole.run)
    assert weights(resumed.run) == weights(whole.run)
    assert asked(resumed.run) == asked(whole.run)


METRICS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "emptied": (lambda _: [], "found nothing instead of step 0"),
    "cut": (lambda rows: rows[:2], "found nothing instead of step 2"),
    "a row lost": (lambda rows: [*rows[:1], *rows[2:]], "found step 2 instead of step 1"),
    "a row twice": (lambda rows: [*rows[:2], *rows[1:]], "found step 1 instead of step 2"),
}


@pytest.mark.parametrize(("harm", "sentence"), METRICS.values(), ids=METRICS)
def test_metrics_with_a_gap_are_refused_before_anything_is_dropped(
    harm: Callable[[list[str]], list[str]], sentence: str, parts: Making, tmp_path: Path, judged: str
) -> None:
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED}
    trained(parts(tmp_path / "run", **settings, train={"steps": 3}))
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text("".join(harm(path.read_text().splitlines(keepends=True))))
    harmed = path.read_text()
    with pytest.raises(InputError, match=f"metrics.jsonl is incomplete: {sentence}.*step-3"):
        trained(parts(tmp_path / "run", **settings, train={"steps": 4}))
    assert path.read_text() == harmed
    assert len(list((tmp_path / "run" / "trajectories").glob("step-3.jsonl"))) == 1


def test_records_of_a_run_whose_checkpoints_are_gone_are_not_dropped(
    parts: Making, tmp_path: Path, judged: str
) -> None:
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", **settings)
    trained(made)
    for path in made.run.checkpoints():
        shutil.rmtree(path)
    with pytest.raises(InputError, match=r"3 steps .*no checkpoint"):
        trained(parts(tmp_path / "run", **settings))
    assert [row["step"] for row in made.run.metrics()] == [0, 1, 2, 3]


def test_damaged_checkpoint_is_refused_and_one_without_checksums_is_not(
    parts: Making, tmp_path: Path, judged: str
) -> None:
    """One bit of a weight, or of a moment, would train on without a word."""
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", **settings, train={"steps": 2})
    trained(made)
    for name in ("model.safetensors", "trainer/__0_0.distcp", "trainer/progress.json", "trainer/checksums.json"):
        path = made.run.checkpoint(2) / name
        written = path.read_bytes()
        path.write_bytes(written[:-9] + bytes([written[-9] ^ 1]) + written[-8:])
        with pytest.raises(InputError, match=f"{path} (does not match its checksum|is damaged|is not valid JSON)"):
            trained(parts(tmp_path / "run", **settings, train={"steps": 3}))
        path.write_bytes(written)
    (made.run.checkpoint(2) / "trainer" / "checksums.json").unlink()
    told = Told()
    train(parts(tmp_path / "run", **settings, train={"steps": 3}), told, 0.0)
    assert [line for line in told.lines if "step-2" in line and "checksums" in line]


def test_resuming_a_finished_run_only_measures_again(parts: Making, tmp_path: Path, judged: str) -> None:
    first = trained(made := parts(tmp_path / "run", reward={"answer": judged}))
    before, saved = recorded(made.run), weights(made.run)
    again = trained(parts(tmp_path / "run", reward={"answer": judged}))
    for now, then in ((again.before, first.before), (again.after, first.after)):
        assert now is not None
        assert then is not None
        assert list(now.greedy.trajectories) == list(then.greedy.trajectories)
        assert list(now.sampled.trajectories) == list(then.sampled.trajectories)
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
    tables = {"reward": {"answer": judged}, "algorithm": {"advantage": "reinforce"}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", **tables, train=settings)
    trained(made)
    for row in recorded(made.run)[1:]:
        assert row["group/dropped"] == 0
        assert row["policy/gradient_norm"] > 0


def test_steps_without_spread_change_no_weights(parts: Making, tmp_path: Path) -> None:
    """A policy drawn at random answers nothing, so every reward is zero."""
    made = parts(tmp_path / "run", evaluate=UNASKED)
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


@pytest.mark.parametrize(
    ("answered", "sentence"),
    [(3, "50% of the episodes were lost to failed searches, more than 5%"), (0, "no episode was usable")],
)
def test_failed_searches_end_the_run_before_they_teach(
    answered: int, sentence: str, searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run", learning=searching(), retriever=Failing(after=answered), evaluate=UNASKED)
    with pytest.raises(TrainingStopped, match=f"{sentence}.*'Ada': it is down"):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0]
    assert [path.name for path in made.run.checkpoints()] == ["step-0"]


def test_held_out_questions_that_are_all_lost_end_the_run(
    searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    lost = {"search_failures": 1.0}
    made = parts(tmp_path / "run", learning=searching(), retriever=Failing(), train={"steps": 1}, guards=lost)
    with pytest.raises(TrainingStopped, match=r"no episode was usable \(3 search_unavailable\)"):
        trained(made)
    assert list(made.run.metrics()) == []


def test_policy_that_is_broken_ends_the_run(parts: Making, tmp_path: Path, policy: Callable[..., Policy]) -> None:
    broken = policy()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingStopped, match=r"not finite; .* a lower train\.learning_rate"):
        trained(parts(tmp_path / "run", learning=broken))


@pytest.fixture
def own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a loss of the user's own: the clipped one, but for what the code given does with it at each call."""

    def make(code: str) -> str:
        name = f"loss_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(
            "from itertools import count\n"
            "from sleuth.algorithms.loss import TokenLoss, clipped\n"
            "calls = count(1)\n"
            "def own(sampled, bounds):\n"
            f"    made, call = clipped(sampled, bounds), next(calls)\n    {code}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        return f"import:{name}.own"

    return make


SURPRISE = "return TokenLoss(made.value_T, {'surprise': sampled.logprob_T.detach() / 0})"
THIRD = "return TokenLoss(made.value_T * (float('nan') if call == 3 else 1.0), made.metrics)"


def test_metric_of_the_users_own_that_is_no_number_ends_the_run(
    own_loss: Callable[[str], str], parts: Making, tmp_path: Path, judged: str
) -> None:
    settings = {"reward": {"answer": judged}, "algorithm": {"loss": own_loss(SURPRISE)}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", guards={"non_finite": "stop"}, **settings)
    with pytest.raises(TrainingStopped, match="policy/surprise is -inf"):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0]


def test_run_that_is_rolled_back_too_often_ends(
    own_loss: Callable[[str], str], parts: Making, tmp_path: Path, judged: str
) -> None:
    settings = {"reward": {"answer": judged}, "algorithm": {"loss": own_loss(SURPRISE)}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", guards={"rollbacks": 2}, **settings)
    with pytest.raises(
        TrainingStopped, match=r"surprise is -inf, and guards\.rollbacks = 2 allows no further rollback"
    ):
        trained(made)
    assert [event["action"] for event in made.run.events()] == ["rollback", "rollback", "stop"]
    assert {event["step"] for event in made.run.events()} == {1}


def test_exploding_loss_is_rolled_back_to_the_last_good_checkpoint_at_a_lower_rate(
    own_loss: Callable[[str], str], parts: Making, tmp_path: Path, judged: str
) -> None:
    """The third loss is no number. Step 1 was proven by step 2, which was sampled from it; step 2 was not, and goes."""
    told = Told()
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED}
    settings |= {"algorithm": {"loss": own_loss(THIRD)}, "guards": {"rollback_rate": 0.25}}
    steps = {"steps": 4, "save_every": 1, "keep": 9, "learning_rate": 1e-3, "questions": 2, "samples": 3}
    made = parts(tmp_path / "run", train=steps, **settings)
    outcome = train(made, told, 0.0)
    assert [(event["step"], event["guard"], event["action"]) for event in made.run.events()] == [
        (3, "non_finite", "rollback")
    ]
    assert any("last good checkpoint" in line for line in told.lines)
    rows = recorded(made.run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["policy/learning_rate"] for row in rows[1:]] == pytest.approx([1e-3, 2.5e-4, 2.5e-4, 2.5e-4])
    assert not any("guard/non_finite" in row for row in rows)
    assert outcome.progress.questions_drawn == 8
    assert [path.name for path in made.run.checkpoints()] == [f"step-{step}" for step in range(5)]
    # What is resumed goes on at that rate.
    again = parts(tmp_path / "run", train={**steps, "steps": 5}, **settings)
    trained(again)
    assert [row["policy/learning_rate"] for row in again.run.metrics() if row["step"] == 5] == [2.5e-4]


@pytest.mark.parametrize(
    ("harm", "error"),
    [("shutil.rmtree(first)", TrainingStopped), ("(first / 'model.safetensors').write_bytes(b'')", InputError)],
)
def test_rollback_whose_target_cannot_be_loaded_removes_nothing(
    harm: str, error: type[Exception], own_loss: Callable[[str], str], parts: Making, tmp_path: Path, judged: str
) -> None:
    """With train.keep = 1 the target is step-0, which is missing or damaged when the third loss is no number."""
    first = tmp_path / "run" / "checkpoints" / "step-0"
    code = f"import pathlib, shutil; first = pathlib.Path({str(first)!r})\n    if call == 3: {harm}\n    {THIRD}"
    steps = {"steps": 4, "save_every": 1, "keep": 1, "learning_rate": 1e-3, "questions": 2, "samples": 3}
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED, "train": steps}
    made = parts(tmp_path / "run", algorithm={"loss": own_loss(code)}, **settings)
    with pytest.raises(error, match="step-0"):
        trained(made)
    assert "step-2" in [path.name for path in made.run.checkpoints()]
    assert [row["step"] for row in made.run.metrics()] == [0, 1, 2]
    assert list(made.run.events()) == []


def test_exploding_loss_that_is_skipped_leaves_the_weights(
    own_loss: Callable[[str], str], parts: Making, tmp_path: Path, judged: str
) -> None:
    settings: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED, "guards": {"non_finite": "skip"}}
    steps = {"steps": 4, "save_every": 1, "keep": 9, "learning_rate": 1e-3, "questions": 2, "samples": 3}
    made = parts(tmp_path / "run", train=steps, algorithm={"loss": own_loss(THIRD)}, **settings)
    trained(made)
    same = [weights(made.run, step) == weights(made.run, step - 1) for step in (1, 2, 3, 4)]
    assert same == [False, False, True, False]
    assert [row.get("guard/non_finite") for row in recorded(made.run)] == [None, None, None, 1.0, None]
    assert [event["action"] for event in made.run.events()] == ["skip"]
    assert "policy/loss" not in recorded(made.run)[3]


@pytest.mark.parametrize("action", ["rollback", "skip", "stop"])
def test_update_after_which_the_policy_is_not_finite_is_noticed_before_the_next_rollout(
    action: str, parts: Making, tmp_path: Path, judged: str
) -> None:
    """The first rate breaks the policy; after a rollback it is 1e-8. What was applied cannot be skipped."""
    steps: dict[str, float] = {"steps": 2, "save_every": 1, "keep": 9, "questions": 2, "samples": 3}
    steps |= {"learning_rate": 1e6, "weight_decay": 1e6}
    guards = {"non_finite": action, "rollback_rate": 1e-14}
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate=UNASKED, train=steps, guards=guards)
    if action == "stop":
        with pytest.raises(TrainingStopped, match="the logprobs of the policy are not finite after the update"):
            trained(made)
    else:
        trained(made)
    done = "stop" if action == "stop" else "rollback"
    assert [(event["step"], event["guard"], event["action"]) for event in made.run.events()] == [
        (1, "non_finite", done)
    ]
    kept = ["step-0"] if action == "stop" else ["step-0", "step-1", "step-2"]
    assert [path.name for path in made.run.checkpoints()] == kept
    assert all(torch.isfinite(each).all() for path in made.run.checkpoints() for each in load_weights(path).values())


@pytest.mark.parametrize(
    ("old", "apart", "recomputed"),
    [("auto", 0.0, False), ("auto", 1e-3, True), ("engine", 1e-3, False), ("recompute", 0.0, True)],
)
def test_old_logprobs_are_the_engines_unless_it_is_too_far_from_the_trainer(
    old: str, apart: float, recomputed: bool, parts: Making, tmp_path: Path, judged: str
) -> None:
    told = Told()
    tables: dict[str, Any] = {"reward": {"answer": judged}, "algorithm": {"old": old}, "evaluate": UNASKED}
    tables |= {"engine": {"slots": 4, "parity": 1.0}, "guards": {"parity": 1.0}}
    steps = {"steps": 1, "questions": 2, "samples": 3, "learning_rate": 1e-3}
    made = parts(tmp_path / "run", apart=apart, train=steps, **tables)
    train(made, told, 0.0)
    says = "recomputed by the trainer" if recomputed else "from the engine"
    assert [line for line in told.lines if line.startswith("old logprobs")] == [f"old logprobs: {says}"]
    first, row = recorded(made.run)
    assert (first["parity/mean"] > 0.005) == bool(apart)
    assert (abs(row["policy/ratio"] - 1.0) > 1e-4) == (bool(apart) and not recomputed)


@pytest.mark.parametrize(
    ("apart", "chosen", "corrects"),
    [
        (0.0, {}, False),
        (1e-3, {}, True),
        (1e-3, {"old": "engine"}, False),
        (1e-3, {"correction": {"level": "none"}}, False),
    ],
)
def test_a_server_that_is_too_far_from_the_trainer_is_corrected_for(
    apart: float, chosen: dict[str, Any], corrects: bool, parts: Making, tmp_path: Path, judged: str
) -> None:
    told = Told()
    tables: dict[str, Any] = {"reward": {"answer": judged}, "algorithm": chosen, "evaluate": UNASKED}
    tables |= {"engine": {"kind": "vllm", "slots": 4, "parity": 1.0}, "guards": {"parity": 1.0}}
    steps = {"steps": 1, "questions": 2, "samples": 3, "learning_rate": 1e-3}
    made = parts(tmp_path / "run", apart=apart, train=steps, **tables)
    train(made, told, 0.0)
    said = [line for line in told.lines if line.startswith("correction: ")]
    assert len(said) == corrects
    assert any(name.startswith("correction/") for name in recorded(made.run)[-1]) == corrects


def test_weight_of_kl_adapts_to_the_distance_of_each_step(parts: Making, tmp_path: Path, judged: str) -> None:
    kl = {"place": "loss", "coefficient": 0.01, "target": 1e-4, "horizon": 12}
    steps = {"steps": 3, "save_every": 1, "keep": 9, "learning_rate": 1e-2, "questions": 2, "samples": 3}
    made = parts(tmp_path / "run", reward={"answer": judged}, algorithm={"kl": kl}, train=steps, evaluate=UNASKED)
    trained(made)
    weight, found = 0.01, [0.01]
    for row in recorded(made.run)[1:]:
        weight *= 1 + max(-0.2, min(0.2, row["policy/kl"] / 1e-4 - 1)) * 6 / 12
        found.append(weight)
    assert [progress(made.run, step)["kl"] for step in range(4)] == pytest.approx(found)
    assert found[1] < found[0]
    assert found[3] > found[2]


def test_run_that_is_not_examined_has_no_figures_of_it(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate=UNASKED, train={"steps": 1})
    outcome = trained(made)
    assert (outcome.before, outcome.after) == (None, None)
    assert not any(name.startswith("evaluate/") for row in recorded(made.run) for name in row)
    assert "parity/mean" in recorded(made.run)[0]


@pytest.mark.parametrize("keep_best", [True, False])
def test_best_checkpoint_is_kept_where_that_is_asked(
    keep_best: bool, parts: Making, tmp_path: Path, judged: str
) -> None:
    """No answer of this policy is right, so that no evaluation is better than the first, after step 2."""
    steps = {"steps": 3, "save_every": 1, "keep": 1, "keep_best": keep_best, "questions": 2, "samples": 2}
    made = parts(tmp_path / "run", reward={"answer": judged}, train=steps, evaluate={**UNASKED, "every": 2})
    trained(made)
    kept = [path.name for path in made.run.checkpoints()]
    assert kept == ["step-0", *(["step-2"] if keep_best else []), "step-3"]
    assert made.run.best() == (made.run.checkpoint(2) if keep_best else None)
    assert (progress(made.run, 3)["best"], progress(made.run, 3)["score"]) == (0.0, 0.0 if keep_best else None)


def test_first_and_last_policy_can_be_the_best(parts: Making, tmp_path: Path, judged: str) -> None:
    """No answer of this policy is right, so that nothing is better than what it was before."""
    steps = {"steps": 2, "save_every": 1, "keep": 1, "keep_best": True, "questions": 2, "samples": 2}
    asked = {**UNASKED, "before": True, "after": True, "every": 1}
    made = parts(tmp_path / "run", reward={"answer": judged}, train=steps, evaluate=asked)
    trained(made)
    assert made.run.best() == made.run.checkpoint(0)
    made = parts(
        tmp_path / "later", reward={"answer": judged}, train=steps, evaluate={**asked, "every": 3, "before": False}
    )
    trained(made)
    assert made.run.best() == made.run.checkpoint(2)


@pytest.mark.parametrize(("every", "scored"), [(1, [1, 2]), (3, [2])])
def test_last_step_is_scored_where_nothing_is_asked_after_training(
    every: int, scored: list[int], parts: Making, tmp_path: Path, judged: str
) -> None:
    steps = {"steps": 2, "save_every": 1, "keep": 1, "keep_best": True, "questions": 2, "samples": 2}
    made = parts(tmp_path / "run", reward={"answer": judged}, train=steps, evaluate={**UNASKED, "every": every})
    trained(made)
    assert [row["step"] for row in recorded(made.run) if "evaluate/em" in row] == scored
    assert progress(made.run, 2)["score"] == 0.0
    assert made.run.best() == made.run.checkpoint(scored[0])


SLOW = """
import time

def slow(question, trajectory):
    time.sleep(0.02)
    return len(set(trajectory.ids)) / len(trajectory.ids)
"""


@pytest.mark.parametrize("mode", ["sync", "ahead"])
def test_time_of_rewards_is_their_own(
    mode: str, parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted under generation as well, the parts of a step would be longer than the step."""
    (tmp_path / "slow_judge.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    steps = {"steps": 2, "questions": 2, "samples": 3, "mode": mode}
    algorithm = {"correction": {"level": "token"}} if mode == "ahead" else {}
    tables = {"reward": {"answer": "import:slow_judge.slow"}, "evaluate": UNASKED, "algorithm": algorithm}
    made = parts(tmp_path / "run", train=steps, **tables)
    trained(made)
    for row in list(made.run.metrics())[1:]:
        assert row["time/reward"] >= 6 * 0.02
        assert row["time/generate"] >= 0.0
        if mode == "sync":
            assert row["time/generate"] + row["time/reward"] + row["time/train"] <= row["time/step"]


def test_policy_and_critic_learn_at_their_own_rates(parts: Making, tmp_path: Path, judged: str) -> None:
    """The first step of AdamW moves a weight by the learning rate, whatever its gradient."""
    algorithm = {"advantage": "gae", "critic": {"learning_rate": 1e-3}}
    steps = {"steps": 1, "learning_rate": 1e-5, "questions": 2, "samples": 3}
    made = parts(tmp_path / "run", reward={"answer": judged}, algorithm=algorithm, train=steps, evaluate=UNASKED)
    assert made.learner.critic is not None
    learning = {"policy": made.learner.policy.model, "critic": made.learner.critic.head}
    begun = {name: [each.detach().clone() for each in model.parameters()] for name, model in learning.items()}
    trained(made)
    moved = {
        name: max(
            float((now.detach() - before).abs().max())
            for now, before in zip(model.parameters(), begun[name], strict=True)
        )
        for name, model in learning.items()
    }
    assert moved == pytest.approx({"policy": 1e-5, "critic": 1e-3}, rel=0.2)


def test_critic_warms_up_before_the_policy_learns(parts: Making, tmp_path: Path, judged: str) -> None:
    algorithm = {"advantage": "gae", "critic": {"warmup": 2, "learning_rate": 1e-3}}
    steps = {"steps": 3, "save_every": 1, "keep": 9, "learning_rate": 1e-3, "questions": 2, "samples": 3}
    made = parts(tmp_path / "run", reward={"answer": judged}, algorithm=algorithm, train=steps, evaluate=UNASKED)
    trained(made)
    assert [weights(made.run, step) == weights(made.run, 0) for step in (1, 2, 3)] == [True, True, False]
    assert ["policy/loss" in row for row in recorded(made.run)] == [False, False, False, True]
    assert all(row["critic/gradient_norm"] > 0 for row in recorded(made.run)[1:])


FAILING = """
calls = 0
def judge(question, trajectory):
    global calls
    calls += 1
    if calls in {lost}:
        raise KeyError("no such field")
    return len(set(trajectory.ids)) / len(trajectory.ids)
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], str]:
    """Makes a reward of the user's own that raises at these calls."""

    def make(lost: set[int]) -> str:
        name = f"reward_failing_{len(lost)}_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(FAILING.replace("{lost}", str(lost)))
        monkeypatch.syspath_prepend(tmp_path)
        return f"import:{name}.judge"

    return make


def test_one_reward_that_raises_costs_one_episode(
    failing: Callable[[set[int]], str], parts: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run", reward={"answer": failing({8})}, guards={"function_failures": 0.2}, evaluate=UNASKED)
    trained(made)
    assert [row.get("stop/function_failed") for row in recorded(made.run)] == [None, 0.0, pytest.approx(1 / 6), 0.0]
    (lost,) = [
        row for step in (1, 2, 3) for row in read_rows(made.run.trajectories(step)) if row["stop"] == "function_failed"
    ]
    assert lost["score"] is None
    assert re.search(r"'import:reward_.*judge' raised KeyError: 'no such field' \(.*py:7\)", lost["failure"])
    assert not list(made.run.events())


def test_rewards_that_raise_too_often_end_the_run_with_the_line_of_the_function(
    failing: Callable[[set[int]], str], parts: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run", reward={"answer": failing({7, 8})}, evaluate=UNASKED)
    with pytest.raises(
        TrainingStopped,
        match=r"33% of the episodes were lost to .*, more than 5%, for example: "
        r"'import:reward_.*judge' raised KeyError: 'no such field' \(.*py:7\); fix the function",
    ):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0, 1]
    stopped = [event["guard"] for event in made.run.events() if event["action"] == "stop"]
    assert stopped[0] == "function_failures"


def test_a_reward_that_always_raises_ends_the_first_evaluation(
    failing: Callable[[set[int]], str], parts: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run", reward={"answer": failing(set(range(99)))})
    with pytest.raises(
        TrainingStopped, match=r"no episode was usable \(3 function_failed\), .*KeyError.*; fix the function"
    ):
        trained(made)


class Faulty:
    """An engine that refuses the callers of every `every`th session while it `fails`."""

    def __init__(
        self,
        engine: Engine,
        failure: str = "the server is overloaded",
        every: int = 2,
        fails: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine, self._failure, self._every, self._fails = engine, failure, every, fails
        self.session, self.publish, self.close = engine.session, engine.publish, engine.close

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: Session | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        if session is not None and session.priority % self._every == self._every - 1 and self._fails():
            raise EngineFailure(self._failure)
        return await self._engine.generate(ids, sampling, session, on_tokens)


def test_engine_failures_end_the_run_before_the_survivors_teach(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate=UNASKED)
    assert isinstance(made.agent, Agent)
    made = replace(made, sampler=replace(made.sampler, agent=replace(made.agent, engine=Faulty(made.engine))))
    with pytest.raises(TrainingStopped, match=r"50% .* lost to engine failures, more than 5%.*overloaded"):
        trained(made)
    assert [row["step"] for row in made.run.metrics()] == [0]
    assert [(event["guard"], event["action"]) for event in made.run.events()] == [
        ("engine_failures", "stop"),
        ("unusable", "stop"),
    ]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "ahead"])
def test_rollout_of_weights_that_are_not_finite_is_rolled_back(
    every: int, mode: str, parts: Making, tmp_path: Path, judged: str
) -> None:
    """As where only long texts overflow: the probe after the update sees none, and engine_failures would stop."""
    steps = {"steps": 3, "save_every": 1, "keep": 9, "questions": 2, "samples": 3, "mode": mode}
    tables: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": UNASKED}
    made = parts(tmp_path / "run", train=steps, algorithm={"correction": {"level": "token"}}, **tables)
    run = made.run
    metrics, events = run.path / "metrics.jsonl", run.path / "events.jsonl"

    def fails() -> bool:
        return metrics.exists() and metrics.read_bytes().count(b"\n") > 1 and not events.exists()

    assert isinstance(made.agent, Agent)
    engine = Faulty(made.engine, NOT_FINITE, every, fails)
    made = replace(made, sampler=replace(made.sampler, agent=replace(made.agent, engine=engine)))
    trained(made)
    ((guard, action, sentence),) = [(each["guard"], each["action"], each["sentence"]) for each in run.events()]
    assert (guard, action) == ("non_finite", "rollback")
    assert sentence.endswith(f" of 6 episodes were lost, for example: {NOT_FINITE}")
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3]


def test_evaluations_of_a_run_that_keeps_its_cache_begin_clean(parts: Making, tmp_path: Path, judged: str) -> None:
    """Held-out questions are training questions here, so prompts cached by older weights would be found."""
    # A prompt of several pages, and more pages than the episodes need.
    agent = {"prompt": "instruct", "searches": 0, "turn_tokens": 6, "context_tokens": 500}
    tables = {"reward": {"answer": judged}, "engine": {"stale_cache": "keep"}, "agent": agent}
    made = parts(tmp_path / "run", train={"learning_rate": 0.1}, **tables)
    after = trained(made).after
    assert after is not None
    fresh = parts(tmp_path / "fresh", learning=made.learner.policy, **tables)
    scored = asyncio.run(evaluate_held_out(fresh, 0.0, 3))
    logprobs = [[each.logprobs for each in found.trajectories] for found in (after.greedy, scored)]
    assert logprobs[0] == logprobs[1]


class Gathering:
    """A retriever that answers when three searches are under way together."""

    def __init__(self) -> None:
        self._three = asyncio.Barrier(3)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        try:
            await asyncio.wait_for(self._three.wait(), 20)
        except (TimeoutError, asyncio.BrokenBarrierError):
            await self._three.abort()
            return [SearchUnavailable(query, "too few episodes in flight") for query in queries]
        return [[] for _ in queries]


def test_more_episodes_than_slots_may_wait_for_their_searches(
    searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    tables = {"engine": {"slots": 1}, "agent": {"concurrency": 3}, "train": {"steps": 1}}
    made = parts(tmp_path / "run", learning=searching(), retriever=Gathering(), **tables)
    outcome = trained(made)
    assert [row["episode/unusable"] for row in recorded(made.run)[1:]] == [0.0]
    assert outcome.after is not None
    assert outcome.after.greedy.unusable == 0


@pytest.mark.parametrize("mode", ["sync", "ahead"])
def test_one_interrupt_ends_a_run_whose_search_hangs(
    mode: str, searching: Callable[[], Policy], parts: Making, tmp_path: Path
) -> None:
    waited: list[float] = []

    class Hanging:
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
            if not waited:
                waited.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
            raise AssertionError("nobody cancelled the search")

    tables = {"train": {"mode": mode}, "algorithm": {"correction": {"level": "token"}}} if mode == "ahead" else {}
    made = parts(tmp_path / "run", learning=searching(), retriever=Hanging(), evaluate=UNASKED, **tables)
    with pytest.raises(KeyboardInterrupt):
        trained(made)
    assert time.monotonic() - waited[0] < 60


def test_roles_that_nothing_was_sampled_with_end_the_run(parts: Making, tmp_path: Path, judged: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate=UNASKED)
    roles = made.config.train.model_copy(update={"roles": ["writer"]})
    made = replace(made, config=made.config.model_copy(update={"train": roles}))
    with pytest.raises(TrainingStopped, match=r"train\.roles has 'writer'"):
        train(made, SilentObserver(), 0.0)
