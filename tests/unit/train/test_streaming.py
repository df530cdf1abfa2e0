"""Asynchronous training: groups sampled while the trainer updates, none too old, none lost, none asked twice."""

import asyncio
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from sleuth.agent.task import Task
from sleuth.errors import Interrupted, SearchUnavailable, TrainingStopped, UserError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, StopReason, Trajectory
from sleuth.retrieval.retriever import Retriever
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.json_files import read_rows
from sleuth.runs.run import Run
from sleuth.train.episodes import EpisodeRunner
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.streaming import FOLDER

Making = Callable[..., Parts]
TIMED = ("time/", "speed/", "memory/", "search/", "engine/", "tool/", "buffer/")
UNASKED = {"before": False, "after": False}


def streaming(**train: Any) -> dict[str, Any]:
    steps = {"mode": "async", "steps": 5, "questions": 2, "samples": 3, "learning_rate": 1e-3, "save_every": 9, **train}
    return {"train": steps, "algorithm": {"correction": {"level": "token"}}, "evaluate": UNASKED}


def recorded(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith(TIMED)} for row in run.metrics()]


def weights(run: Run) -> bytes:
    latest = run.latest()
    assert latest is not None
    return (latest / "model.safetensors").read_bytes()


def trained(run: Run) -> list[list[int]]:
    """The positions of the question stream in each step."""
    steps = [row["step"] for row in run.metrics() if row["step"]]
    return [list(dict.fromkeys(row["group"] for row in read_rows(run.trajectories(step)))) for step in steps]


def on_disk(run: Run) -> set[int]:
    """The positions of the finished groups: their episodes have ended, are scored, and are written."""
    rows = [row for path in (run.path / FOLDER).iterdir() for row in read_rows(path) if "id" in row]
    return {row["position"] for row in rows if all(sample["score"] is not None for sample in row["samples"])}


class Delayed:
    """Runs episodes after a random delay, and notes which groups were asked for and which are finished."""

    def __init__(self, inner: EpisodeRunner, seed: int = 0, longest: float = 0.05) -> None:
        self._inner, self._dice, self._longest = inner, random.Random(seed), longest
        self.asked: list[int] = []
        self.finished: list[int] = []

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        assert len({task.group for task in tasks}) == 1
        self.asked.append(tasks[0].group)
        await asyncio.sleep(self._dice.uniform(0.0, self._longest))
        found = await self._inner.run(tasks)
        self.finished.append(tasks[0].group)
        return found


def delayed(made: Parts, seed: int = 0, longest: float = 0.05) -> tuple[Parts, Delayed]:
    runner = Delayed(made.sampler.runner, seed, longest)
    return replace(made, sampler=replace(made.sampler, episodes=runner)), runner


class Killed(SilentObserver):
    """An observer that ends the process, as far as a test can, when a step is recorded."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, step: int, metrics: Any) -> None:
        if step == self._step:
            raise RuntimeError("killed")


@pytest.mark.parametrize(("staleness", "seed"), [(1, 0), (2, 1), (4, 2)])
def test_no_token_is_older_than_the_bound_and_every_question_is_trained_once(
    staleness: int, seed: int, parts: Making, tmp_path: Path, judged: str
) -> None:
    made, runner = delayed(
        parts(tmp_path / "run", reward={"answer": judged}, **streaming(staleness=staleness, steps=7)), seed
    )
    train(made, SilentObserver(), 0.0)
    rows = recorded(made.run)[1:]
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= staleness for row in rows)
    assert max(row["staleness/max"] for row in rows) > 0
    for row in rows:
        written = list(read_rows(made.run.trajectories(row["step"])))
        versions = [version for each in written for version in each["weights_versions"]]
        assert all(row["step"] - 1 - staleness <= version <= row["step"] - 1 for version in versions)
        assert {each["step"] for each in written} == {row["step"]}
        assert len(written) == 6
    steps = trained(made.run)
    assert sorted(position for groups in steps for position in groups) == list(range(14))
    assert sorted(runner.asked) == list(range(14))  # none that no step needs
    assert all(row["policy/ratio"] == pytest.approx(1.0, abs=1e-5) for row in rows)
    assert list(made.run.events()) == []
    *_, latest = made.run.metrics()
    assert {"time/waiting_for_rollouts", "time/rollouts_waiting", "buffer/size"} <= latest.keys()


def test_staleness_of_zero_is_synchronous_training_bit_for_bit(parts: Making, tmp_path: Path, judged: str) -> None:
    tables = streaming(staleness=0, resample=1)
    waiting = parts(tmp_path / "async", reward={"answer": judged}, **tables)
    del tables["train"]["staleness"]
    tables["train"]["mode"] = "sync"
    synchronous = parts(tmp_path / "sync", reward={"answer": judged}, **tables)
    for made in (waiting, synchronous):
        train(made, SilentObserver(), 0.0)
    assert recorded(waiting.run) == recorded(synchronous.run)
    assert weights(waiting.run) == weights(synchronous.run)


def test_staleness_of_one_asks_what_ahead_asks(parts: Making, tmp_path: Path, judged: str) -> None:
    asked = []
    for mode in ("ahead", "async"):
        made = parts(tmp_path / mode, reward={"answer": judged}, **streaming(mode=mode))
        train(made, SilentObserver(), 0.0)
        rows = recorded(made.run)[1:]
        assert max(row["staleness/max"] for row in rows) == 1.0
        written = [row["question_id"] for row in rows for row in read_rows(made.run.trajectories(row["step"]))]
        asked.append(Counter(written))
    assert asked[0] == asked[1]


class Held:
    """A retriever whose first search lasts until it is released."""

    def __init__(self) -> None:
        self.released, self._first = asyncio.Event(), True

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        first, self._first, self._loop = self._first, False, asyncio.get_running_loop()
        if first:
            await self.released.wait()
        return [[] for _ in queries]

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self.released.set)


class Releasing(SilentObserver):
    def __init__(self, held: Held, step: int) -> None:
        self._held, self._step = held, step

    def step(self, step: int, metrics: Any) -> None:
        if step == self._step:
            self._held.release()


@pytest.fixture
def searching(reciter: Callable[..., PreTrainedModel], tokens: Tokens) -> Policy:
    """A policy that searches first."""
    pieces = {text: number for number, text in enumerate(tokens.texts())}
    raw = [tokens.tokenizer.convert_ids_to_tokens(pieces[text]) for text in ("<search>", " Ada", " </search>")]
    ends = [tokens.tokenizer.convert_ids_to_tokens(tokens.encode(text)[-1]) for text in ("?\n", ">\n\n")]
    return Policy(reciter(tokens, [[end, *raw] for end in ends]), tokens)


def test_slow_group_is_waited_for_and_goes_on_with_new_weights(
    searching: Policy, parts: Making, tmp_path: Path
) -> None:
    """The first search ends after the first step: its episode begins by version 0 and ends by version 1."""
    held = Held()
    tables = streaming(questions=1, staleness=1, steps=3) | {"engine": {"slots": 8}}
    made = parts(tmp_path / "run", learning=searching, retriever=held, **tables)
    train(made, Releasing(held, 1), 0.0)
    assert trained(made.run) == [[1], [0], [2]]
    slow = [row["weights_versions"] for row in read_rows(made.run.trajectories(2))]
    assert sorted({version for each in slow for version in each}) == [0, 1]
    assert [row["staleness/max"] for row in recorded(made.run)[1:]] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("step", [1, 3, 4])
def test_killed_run_goes_on_with_the_groups_on_disk(step: int, parts: Making, tmp_path: Path, judged: str) -> None:
    tables = streaming(staleness=2, steps=6) | {"reward": {"answer": judged}}
    cut, first = delayed(parts(tmp_path / "run", **tables))
    with pytest.raises(RuntimeError, match="killed"):
        train(cut, Killed(step), 0.0)
    before, steps = recorded(cut.run), trained(cut.run)
    logged = on_disk(cut.run)
    assert {position for groups in steps for position in groups} <= logged <= set(first.finished)
    resumed, second = delayed(parts(tmp_path / "run", **tables), seed=1)
    train(resumed, SilentObserver(), 0.0)
    # The steps after the checkpoint are repeated with the same groups, which gives the same weights.
    assert recorded(resumed.run)[: step + 1] == before
    assert trained(resumed.run)[:step] == steps
    assert logged.isdisjoint(second.asked)
    assert len(set(second.asked)) == len(second.asked)
    assert sorted(position for groups in trained(resumed.run) for position in groups) == list(range(12))
    assert sorted({*logged, *second.asked}) == list(range(12))
    assert all(row["staleness/max"] <= 2 for row in recorded(resumed.run)[1:])


def test_checkpoint_knows_which_questions_no_step_has_trained_on(parts: Making, tmp_path: Path, judged: str) -> None:
    """Also without the groups on disk, no question is skipped."""
    tables = streaming(staleness=2, steps=6, save_every=2) | {"reward": {"answer": judged}}
    cut, _ = delayed(parts(tmp_path / "run", **tables))
    with pytest.raises(RuntimeError, match="killed"):
        train(cut, Killed(5), 0.0)
    for path in (cut.run.path / FOLDER).iterdir():
        path.unlink()
    progress = json.loads((cut.run.checkpoint(4) / "trainer" / "progress.json").read_text())
    assert len(progress["untrained"]) == progress["asked"] - 8
    resumed, runner = delayed(parts(tmp_path / "run", **tables), seed=1)
    train(resumed, SilentObserver(), 0.0)
    assert sorted(position for groups in trained(resumed.run) for position in groups) == list(range(12))
    assert sorted(runner.asked) == sorted(set(range(12)) - {p for groups in trained(resumed.run)[:4] for p in groups})


def test_groups_of_a_checkpoint_are_removed_from_disk(parts: Making, tmp_path: Path, judged: str) -> None:
    made, _ = delayed(parts(tmp_path / "run", reward={"answer": judged}, **streaming(steps=8, save_every=2)))
    train(made, SilentObserver(), 0.0)
    rows = [row for path in (made.run.path / FOLDER).iterdir() for row in read_rows(path)]
    assert min(row["step"] for row in rows if "step" in row) > 2
    assert len([row for row in rows if "id" in row]) < 16


def test_groups_without_spread_are_replaced(parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judge_of_even_questions.py").write_text(
        "def even(question, trajectory):\n    return 0.5 if int(question.id[1:]) % 2 else 0.1 * trajectory.sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = streaming(staleness=2, steps=4, resample=9) | {"reward": {"answer": "import:judge_of_even_questions.even"}}
    cut, _ = delayed(parts(tmp_path / "run", **tables))
    with pytest.raises(RuntimeError, match="killed"):
        train(cut, Killed(2), 0.0)
    made, _ = delayed(parts(tmp_path / "run", **tables), seed=1)
    train(made, SilentObserver(), 0.0)
    for row in recorded(made.run)[1:]:
        groups = {each["group"]: each["question_id"] for each in read_rows(made.run.trajectories(row["step"]))}
        kept = [question for question in groups.values() if int(question[1:]) % 2 == 0]
        assert len(kept) == 2
        assert row["group/dropped"] == len(groups) - 2
    every = [position for groups in trained(made.run) for position in groups]
    assert len(set(every)) == len(every)
    assert sum(row["group/dropped"] for row in recorded(made.run)[1:]) > 0


def test_replacing_ends_after_so_many_attempts(parts: Making, tmp_path: Path) -> None:
    """No answer of this policy is right: no group has spread."""
    made, runner = delayed(parts(tmp_path / "run", **streaming(steps=2, resample=2)))
    train(made, SilentObserver(), 0.0)
    assert [row["group/dropped"] for row in recorded(made.run)[1:]] == [6, 6]
    assert sorted(runner.asked) == list(range(12))


def test_held_out_questions_are_asked_of_the_newest_weights_beside_the_rollouts(
    parts: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge_that_notes.py").write_text(
        "import json\n"
        "from pathlib import Path\n"
        "def note(question, trajectory):\n"
        "    with Path(__file__).with_name('judged.jsonl').open('a') as file:\n"
        "        print(json.dumps([trajectory.step, trajectory.sample, sorted(set(trajectory.versions))]), file=file)\n"
        "    return len(set(trajectory.ids)) / len(trajectory.ids)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = streaming(staleness=2, steps=3, samples=2) | {"evaluate": {"before": False, "after": False, "every": 1}}
    made, _ = delayed(parts(tmp_path / "run", reward={"answer": "import:judge_that_notes.note"}, **tables))
    train(made, SilentObserver(), 0.0)
    assert ["evaluate/em" in row for row in recorded(made.run)] == [False, True, True, True]
    found = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert len(found) == 3 * 2 * 2 + 3 * 3
    for step in (1, 2, 3):
        assert sum(each == [step, 0, [step]] for each in found) >= 3


def test_run_rolled_back_drops_all_groups_and_asks_again(
    parts: Making, tmp_path: Path, judged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fourth_explodes.py").write_text(
        "from itertools import count\n"
        "from sleuth.algorithms.loss import TokenLoss, clipped\n"
        "calls = count(1)\n"
        "def own(sampled, bounds):\n"
        "    made = clipped(sampled, bounds)\n"
        "    return TokenLoss(made.value_T * (float('nan') if next(calls) == 4 else 1.0), made.metrics)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = streaming(save_every=1, keep=9, steps=6)
    tables["algorithm"] |= {"loss": "import:fourth_explodes.own"}
    made, runner = delayed(parts(tmp_path / "run", reward={"answer": judged}, **tables))
    train(made, SilentObserver(), 0.0)
    assert [event["step"] for event in made.run.events()] == [4]
    rows = recorded(made.run)[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(0 <= row["staleness/max"] <= 1 for row in rows)
    assert sorted(position for groups in trained(made.run) for position in groups) == list(range(12))
    assert len(runner.asked) > 12


class Down:
    """A retriever that breaks after so many queries."""

    def __init__(self, after: int) -> None:
        self._left = after

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self._left -= len(queries)
        if self._left < 0:
            raise UserError("the index is gone")
        return [[] for _ in queries]


@pytest.mark.parametrize("answered", [0, 8, 13])
def test_what_breaks_the_episodes_ends_the_run_with_its_own_words(
    answered: int, searching: Policy, parts: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run", learning=searching, retriever=Down(answered), **streaming())
    with pytest.raises(UserError, match=r"^the index is gone$"):
        train(made, SilentObserver(), 0.0)
    assert not [each for each in threading.enumerate() if each.name.startswith("episodes")]


class Unavailable:
    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [SearchUnavailable("Ada", "the server is down") for _ in queries]


def test_groups_without_a_usable_sample_are_asked_again(
    searching: Policy, library: Retriever, parts: Making, tmp_path: Path
) -> None:
    cut, first = delayed(parts(tmp_path / "run", learning=searching, retriever=Unavailable(), **streaming(steps=2)))
    with pytest.raises(TrainingStopped, match="the server is down"):
        train(cut, SilentObserver(), 0.0)
    resumed, second = delayed(parts(tmp_path / "run", learning=searching, retriever=library, **streaming(steps=2)))
    train(resumed, SilentObserver(), 0.0)
    assert first.finished
    assert sorted(second.asked) == list(range(4))


class Flaky:
    """A retriever that answers so many queries, and is down then."""

    def __init__(self, answered: int) -> None:
        self._left = answered

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self._left -= 1
        return [[] if self._left >= 0 else SearchUnavailable(query, "the server is down") for query in queries]


@pytest.mark.parametrize("answered", [3, 5, 8, 11])
def test_run_stopped_for_lost_episodes_asks_them_again(
    answered: int, searching: Policy, library: Retriever, parts: Making, tmp_path: Path
) -> None:
    cut, _ = delayed(parts(tmp_path / "run", learning=searching, retriever=Flaky(answered), **streaming(steps=4)))
    with pytest.raises(TrainingStopped, match="the server is down"):
        train(cut, SilentObserver(), 0.0)
    finished = on_disk(cut.run)
    again, _ = delayed(parts(tmp_path / "run", learning=searching, retriever=library, **streaming(steps=4)))
    with pytest.raises(RuntimeError, match="killed"):
        train(again, Killed(1), 0.0)
    resumed, second = delayed(parts(tmp_path / "run", learning=searching, retriever=library, **streaming(steps=4)))
    train(resumed, SilentObserver(), 0.0)
    assert sorted(position for groups in trained(resumed.run) for position in groups) == list(range(8))
    rows = [row for step in range(1, 5) for row in read_rows(resumed.run.trajectories(step))]
    assert all(row["score"] is not None for row in rows)
    assert finished.isdisjoint(second.asked)


class Signalled:
    """Runs episodes; the process gets SIGTERM when a group is asked for, whose episodes then never end."""

    def __init__(self, inner: EpisodeRunner, group: int) -> None:
        self._inner, self._group = inner, group

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        if tasks[0].group == self._group:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        return await self._inner.run(tasks)


def test_signal_saves_the_last_step_and_the_resumed_run_goes_on(parts: Making, tmp_path: Path, judged: str) -> None:
    tables = streaming(staleness=1, steps=5) | {"reward": {"answer": judged}}
    made = parts(tmp_path / "run", **tables)
    made = replace(made, sampler=replace(made.sampler, episodes=Signalled(made.sampler.runner, 5)))
    with pytest.raises(Interrupted), INTERRUPTION.handle_signals():
        train(made, SilentObserver(), 0.0)
    latest = made.run.latest()
    assert latest is not None
    reached = int(latest.name.partition("-")[2])
    assert 0 <= reached < 5
    resumed = parts(tmp_path / "run", **tables)
    train(resumed, SilentObserver(), 0.0)
    assert sorted(position for groups in trained(resumed.run) for position in groups) == list(range(10))


def test_unusable_samples_are_recorded_with_their_step(parts: Making, tmp_path: Path, judged: str) -> None:
    class Failing(Delayed):
        async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
            found = await super().run(tasks)
            lost = replace(found[0], stop=StopReason.ENGINE_FAILED, failure="lost", segments=())
            return [lost, *found[1:]]

    tables = streaming(steps=2) | {"guards": {"unusable": 0.9, "engine_failures": 0.9}}
    made = parts(tmp_path / "run", reward={"answer": judged}, **tables)
    made = replace(made, sampler=replace(made.sampler, episodes=Failing(made.sampler.runner)))
    train(made, SilentObserver(), 0.0)
    for step in (1, 2):
        rows = list(read_rows(made.run.trajectories(step)))
        assert [row["score"] is None for row in rows] == [True, False, False] * 2
        assert {row["step"] for row in rows} == {step}
