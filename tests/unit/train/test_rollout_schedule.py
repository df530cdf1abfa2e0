"""Episodes sampled while the step before them trains: one version old, repeatable, and heard of when they fail."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from sleuth.errors import SearchUnavailable, UserError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Hit
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.rollout import OneStepAhead, RolloutBatch, RolloutSchedule

Making = Callable[..., Parts]
TIMED = ("time/", "speed/", "memory/", "search/latency")

# Samples differ in worth; every episode is written down as it is judged, held-out ones too.
JUDGE = """
import json
from pathlib import Path

def noting(question, trajectory):
    with Path(__file__).with_name("judged.jsonl").open("a") as file:
        print(json.dumps([trajectory.step, trajectory.sample, sorted(set(trajectory.versions))]), file=file)
    return len(set(trajectory.ids)) / len(trajectory.ids)
"""


class Down:
    """A retriever that breaks, rather than failing, after so many queries."""

    def __init__(self, after: int) -> None:
        self._left = after

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self._left -= len(queries)
        if self._left < 0:
            raise UserError("the index is gone")
        return [[] for _ in queries]


class Noted:
    """A publisher that writes down which version it was asked for, and by which thread."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, version: int, *, keep_cache: bool = False) -> None:
        self.versions.append(version)


def ahead(**train: Any) -> dict[str, Any]:
    steps = {"mode": "ahead", "steps": 4, "questions": 2, "samples": 3, "learning_rate": 1e-3, **train}
    return {"train": steps, "algorithm": {"correction": {"level": "token"}}}


def recorded(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith(TIMED)} for row in run.metrics()]


def weights(run: Run) -> bytes:
    latest = run.latest()
    assert latest is not None
    return (latest / "model.safetensors").read_bytes()


@pytest.fixture
def noting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    name = f"judge_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(tmp_path)
    return f"import:{name}.noting", tmp_path / "judged.jsonl"


def test_tokens_are_one_version_old_after_the_first_step_and_never_older(
    parts: Making, tmp_path: Path, judged: str
) -> None:
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate={"before": False, "after": False}, **ahead())
    train(made, SilentObserver(), 0.0)
    rows = recorded(made.run)[1:]
    assert [row["staleness/mean"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    assert [row["staleness/max"] for row in rows] == [0.0, 1.0, 1.0, 1.0]
    for row in rows:
        written = list(read_rows(made.run.trajectories(row["step"])))
        assert {version for each in written for version in each["weights_versions"]} == {max(0, row["step"] - 2)}
        assert {each["step"] for each in written} == {row["step"]}
    # Sampled by other weights, tokens are weighed: the ratio of the second step is that of one update.
    assert rows[0]["correction/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert all(row["correction/ratio_max"] > 1.01 for row in rows[1:])
    assert all(row["policy/ratio"] == pytest.approx(1.0, abs=1e-5) for row in rows)


def test_the_version_between_engine_and_trainer_is_no_alarm(parts: Making, tmp_path: Path, judged: str) -> None:
    """`correction/k3` spans one update in this mode, which says nothing about the engine's exactness."""
    tables = {"reward": {"answer": judged}, "evaluate": {"before": False, "after": False}, "guards": {"parity": 1e-9}}
    made = parts(tmp_path / "run", **tables, **ahead())
    train(made, SilentObserver(), 0.0)
    assert max(row["correction/k3"] for row in recorded(made.run)[1:]) > 1e-6
    assert list(made.run.events()) == []


def test_same_seed_gives_the_same_run(parts: Making, tmp_path: Path, judged: str) -> None:
    made = [parts(tmp_path / name, reward={"answer": judged}, **ahead(steps=3)) for name in ("first", "second")]
    for each in made:
        train(each, SilentObserver(), 0.0)
    assert recorded(made[0].run) == recorded(made[1].run)
    assert weights(made[0].run) == weights(made[1].run)


def test_resumed_run_asks_the_same_questions_of_the_weights_it_has(parts: Making, tmp_path: Path, judged: str) -> None:
    """Those of a version before are gone: the first step after a checkpoint is sampled by what it trains."""
    tables: dict[str, Any] = {"reward": {"answer": judged}, "evaluate": {"before": False, "after": False}}
    whole = parts(tmp_path / "whole", **tables, **ahead(steps=3))
    train(whole, SilentObserver(), 0.0)
    train(parts(tmp_path / "cut", **tables, **ahead(steps=1)), SilentObserver(), 0.0)
    resumed = parts(tmp_path / "cut", **tables, **ahead(steps=3))
    train(resumed, SilentObserver(), 0.0)
    asked = [
        [[row["question_id"] for row in read_rows(made.run.trajectories(step))] for step in (1, 2, 3)]
        for made in (whole, resumed)
    ]
    assert asked[0] == asked[1]
    assert [row["staleness/max"] for row in recorded(resumed.run)[1:]] == [0.0, 0.0, 1.0]


def test_held_out_questions_on_the_way_are_asked_of_the_newest_weights(
    parts: Making, tmp_path: Path, noting: tuple[str, Path]
) -> None:
    answer, judged = noting
    evaluate = {"before": False, "after": True, "every": 1}
    made = parts(tmp_path / "run", reward={"answer": answer}, evaluate=evaluate, **ahead(steps=3))
    train(made, SilentObserver(), 0.0)
    assert ["evaluate/em" in row for row in recorded(made.run)] == [False, True, True, False]
    found = [tuple(json.loads(line)) for line in judged.read_text().splitlines()]
    held_out = [(step, versions) for step, _, versions in found if versions == [step]]
    # Three questions after each of the first two steps, and after the third greedily and sampled.
    assert [step for step, _ in held_out] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]
    assert len(found) == 3 * 6 + len(held_out)


def test_run_rolled_back_forgets_the_episodes_of_the_step_that_does_not_come(
    parts: Making, tmp_path: Path, judged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_explodes.py").write_text(
        "from itertools import count\n"
        "from sleuth.algorithms.loss import TokenLoss, clipped\n"
        "calls = count(1)\n"
        "def own(sampled, bounds):\n"
        "    made = clipped(sampled, bounds)\n"
        "    return TokenLoss(made.value_T * (float('nan') if next(calls) == 3 else 1.0), made.metrics)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = ahead(save_every=1, keep=9)
    tables["algorithm"] |= {"loss": "import:third_explodes.own"}
    made = parts(tmp_path / "run", reward={"answer": judged}, evaluate={"before": False, "after": False}, **tables)
    train(made, SilentObserver(), 0.0)
    assert [event["step"] for event in made.run.events()] == [3]
    rows = recorded(made.run)[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["staleness/max"] for row in rows] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("answered", [0, 6, 9])
def test_what_breaks_the_episodes_ends_the_run_with_its_own_words(
    answered: int, reciter: Callable[..., PreTrainedModel], tokens: Tokens, parts: Making, tmp_path: Path
) -> None:
    """In the first step, whose episodes are waited for, or in those of the second while the first trains."""
    pieces = {text: number for number, text in enumerate(tokens.texts())}
    raw = [tokens.tokenizer.convert_ids_to_tokens(pieces[text]) for text in ("<search>", " Ada", " </search>")]
    ends = [tokens.tokenizer.convert_ids_to_tokens(tokens.encode(text)[-1]) for text in ("?\n", ">\n\n")]
    searching = Policy(reciter(tokens, [[end, *raw] for end in ends]), tokens)
    tables = ahead() | {"evaluate": {"before": False, "after": False}}
    made = parts(tmp_path / "run", learning=searching, retriever=Down(answered), **tables)
    with pytest.raises(UserError, match=r"^the index is gone$"):
        train(made, SilentObserver(), 0.0)
    assert [row["step"] for row in made.run.metrics()] == ([0] if answered < 6 else [0, 1])
    assert not [each for each in threading.enumerate() if each.name.startswith("episodes")]


def rollout_batch(asked: int) -> RolloutBatch:
    return RolloutBatch([], [], [], asked, 1, 0.0, {})


def test_next_step_begins_when_this_one_is_taken() -> None:
    begun: list[tuple[int, int]] = []
    taken, release = threading.Event(), threading.Event()

    async def sow(step: int, asked: int) -> RolloutBatch:
        begun.append((step, asked))
        if step == 1:
            taken.set()
            await asyncio.to_thread(release.wait, 10)
        return rollout_batch(asked + 3)

    publisher = Noted()
    with OneStepAhead(sow, publisher) as rollouts:
        assert rollouts.next_batch(0, 5, last=False).questions_drawn == 8
        assert taken.wait(10)
        assert begun == [(0, 5), (1, 8)]
        release.set()
        assert rollouts.next_batch(1, 8, last=True).questions_drawn == 11
    assert begun == [(0, 5), (1, 8)]
    assert publisher.versions == [0, 0]


def test_other_work_waits_for_the_episodes_under_way() -> None:
    order: list[str] = []

    async def sow(step: int, asked: int) -> RolloutBatch:
        await asyncio.sleep(0.01 * step)
        order.append(f"step {step}")
        return rollout_batch(asked)

    async def work() -> str:
        order.append("work")
        return "done"

    with OneStepAhead(sow, Noted()) as rollouts:
        rollouts.next_batch(0, 0, last=False)
        assert rollouts.run(work()) == "done"
    assert order == ["step 0", "step 1", "work"]


def test_episodes_that_were_forgotten_are_asked_for_again() -> None:
    begun: list[tuple[int, int]] = []

    async def sow(step: int, asked: int) -> RolloutBatch:
        begun.append((step, asked))
        if step == 4:
            raise UserError("broken")
        return rollout_batch(asked + 1)

    publisher = Noted()
    with OneStepAhead(sow, publisher) as rollouts:
        rollouts.next_batch(3, 9, last=False)
        # What went wrong in episodes that nobody takes is nobody's concern.
        rollouts.discard()
        rollouts.next_batch(1, 2, last=True)
    assert begun == [(3, 9), (4, 10), (1, 2)]
    assert publisher.versions == [3, 3, 1]


def test_in_turn_nothing_begins_before_it_is_taken() -> None:
    begun: list[int] = []

    async def sow(step: int, asked: int) -> RolloutBatch:
        begun.append(step)
        return rollout_batch(asked + 2)

    with RolloutSchedule(sow) as rollouts:
        assert rollouts.next_batch(0, 0, last=False).questions_drawn == 2
        rollouts.wait_idle()
        assert begun == [0]
        assert rollouts.next_batch(1, 2, last=True).questions_drawn == 4
    assert begun == [0, 1]


def test_episodes_that_never_end_are_cancelled() -> None:
    async def sow(step: int, asked: int) -> RolloutBatch:
        if step == 1:
            await asyncio.Event().wait()
        return rollout_batch(asked)

    async def work() -> str:
        return "done"

    with OneStepAhead(sow, Noted()) as rollouts:
        rollouts.next_batch(0, 0, last=False)
        rollouts.cancel()
        assert rollouts.run(work()) == "done"
        rollouts.cancel()
