"""Training in Python: functions as hooks, settings, callbacks, interrupts, and resuming elsewhere."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

import sleuth
from sleuth.errors import ConfigError, InputError
from sleuth.records import Question, Trajectory

SMALL: dict[str, Any] = {
    "world": {"passages": 100, "questions": 100},
    "train": {"steps": 2, "questions": 4, "samples": 4, "save_every": 1},
    "evaluate": {"questions": 2, "every": 0},
}


def make_reward(value: float) -> Any:
    def reward(question: Question, trajectory: Trajectory) -> float:
        return value * (len(trajectory.answer or "") % 2)  # groups have spread

    return reward


def importable(question: Question, trajectory: Trajectory) -> sleuth.Reward:
    return sleuth.Reward(1.0, {"constant": 1.0})


async def shout(text: str) -> str:
    """Shouts a text."""
    return text.upper()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sleuth.Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return sleuth.Trainer("quickstart", reward=make_reward(0.25), settings=SMALL, folder=folder).train()


def test_a_closure_is_the_reward_and_the_manifest_has_its_hash(trained: sleuth.Run) -> None:
    assert {each.score.total for each in trained.trajectories() if each.score} <= {0.0, 0.25}
    manifest = json.loads((trained.path / "manifest.json").read_text())
    spec = manifest["config"]["reward"]["answer"]
    assert spec.startswith("import:this_process.reward")
    assert len(manifest["parts"][0]["functions"]["reward.answer"]) == 64


def test_a_run_has_rows_records_and_a_checkpoint(trained: sleuth.Run) -> None:
    assert [row["step"] for row in trained.metrics()] == [0, 1, 2]
    assert len(trained.trajectories(1)) == 16
    assert [each.trajectory.step for each in trained.trajectories()] == [1] * 16 + [2] * 16
    assert trained.checkpoint == trained.path / "checkpoints" / "step-2"
    assert trained.summary is not None
    assert trained.summary["steps"] == 2
    assert trained.config.train.questions == 4
    assert sleuth.Run.open(trained.path) == trained
    with pytest.raises(InputError, match="step 7"):
        trained.trajectories(7)


def test_several_trainings_in_a_process_and_in_a_running_loop(tmp_path: Path) -> None:
    seen: list[tuple[int, Mapping[str, float]]] = []
    settings = {**SMALL, "train": {**SMALL["train"], "steps": 1}}

    async def cell() -> list[sleuth.Run]:
        return [
            sleuth.Trainer("quickstart", reward=make_reward(value), settings=settings, folder=tmp_path / f"{value}")
            .train(on_step=lambda step, metrics: seen.append((step, metrics)))
            for value in (0.5, 0.75)
        ]  # fmt: skip

    first, second = asyncio.run(cell())
    assert [step for step, _ in seen] == [1, 1]
    totals = [{each.score.total for each in run.trajectories() if each.score} for run in (first, second)]
    assert totals[0] <= {0.0, 0.5}
    assert totals[1] <= {0.0, 0.75}
    assert totals[0] != totals[1]


def test_the_trained_agent_is_loaded_with_the_index_of_the_run(trained: sleuth.Run) -> None:
    with sleuth.Agent.load(trained) as agent, sleuth.Agent.load(trained.path, before=True) as before:
        assert agent.ask("Who?").trajectory.ids != ()
        assert before.ask("Who?").trajectory.logprobs != agent.ask("Who?").trajectory.logprobs


def test_importable_functions_become_import_paths_and_others_names_of_the_process() -> None:
    trainer = sleuth.Trainer("quickstart", reward=importable, tools=[shout], settings=["train.steps=3"])
    assert trainer.config.reward.answer == f"import:{__name__}.importable"
    assert trainer.config.agent.tools == ["search", f"import:{__name__}.shout"]
    assert trainer.config.train.steps == 3


def test_an_agent_function_replaces_the_agent_of_the_recipe() -> None:
    async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> float:
        return 0.0

    config = sleuth.Trainer("quickstart", agent=run).config
    assert config.agent.run == "import:this_process.run"
    assert config.agent.is_outside
    with pytest.raises(ConfigError, match="tools"):
        sleuth.Trainer("quickstart", agent=run, tools=[shout])


def test_an_agent_function_is_trained_and_evaluated(tmp_path: Path) -> None:
    attempts = count()

    async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> float:
        async with AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
            found = await llm.search_async(task.question.question, 1)
            prompt = f"Question: {task.question.question}\n{found[0]['contents']}\n"
            await client.completions.create(model=llm.model, prompt=prompt, max_tokens=8)
        return float(next(attempts) % 2)

    settings = {**SMALL, "train": {**SMALL["train"], "steps": 1}, "evaluate": {"before": False, "after": False}}
    run_folder = sleuth.Trainer("quickstart", agent=run, settings=settings, folder=tmp_path / "run").train()
    scored = run_folder.trajectories(1)
    assert {each.score.total for each in scored if each.score} == {0.0, 1.0}
    assert all(each.trajectory.stop.usable for each in scored)
    assert run_folder.metrics()[-1]["gateway/calls"] == 16
    with sleuth.Agent.load(run_folder) as agent:
        evaluation = agent.evaluate([{"question": "Who?", "golden_answers": ["Ada"]}])
        assert evaluation.results[0].stop == "answered"
        assert [type(event).__name__ for event in agent.stream("Who?")] == ["AgentAnswer"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"recipe": "quickstarts"}, "quickstart"),
        ({"recipe": "quickstart", "settings": {"train.step": 2}}, r"train\.steps"),
        ({"settings": {"train.steps": 2}}, r"data\.train"),
        ({"recipe": "quickstart", "reward": "emm"}, "emm"),
    ],
)
def test_wrong_settings_are_errors_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        sleuth.Trainer(**options, folder=tmp_path / "run").train()
    assert not (tmp_path / "run").exists()


def test_ctrl_c_saves_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    def stop(step: int, _: Mapping[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    settings = {**SMALL, "train": {**SMALL["train"], "steps": 50, "save_every": 50}, "evaluate.after": False}
    reward = make_reward(0.5)
    trainer = sleuth.Trainer("quickstart", reward=reward, settings=settings, folder=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt, match=r"after step 1; continue .*run"):
        trainer.train(on_step=stop)
    assert signal.getsignal(signal.SIGINT) is before
    resumed = trainer.resume(tmp_path / "run", settings={"train.steps": 2})
    assert [row["step"] for row in resumed.metrics()] == [0, 1, 2]


RESUME = """
import sys, sleuth
from sleuth.errors import ConfigError

def reward(question, trajectory):
    return 0.125

try:
    sleuth.Trainer().resume(sys.argv[1], settings={"train.steps": 3})
except ConfigError as error:
    assert "import:this_process.reward" in str(error) and "resume" in str(error), error
else:
    raise SystemExit("resumed without the function")
run = sleuth.Trainer(reward=reward).resume(sys.argv[1], settings={"train.steps": 3})
assert {each.score.total for each in run.trajectories(3)} == {0.125}
print(len(run.metrics()))
"""


def test_another_process_resumes_only_with_the_function(trained: sleuth.Run) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RESUME, str(trained.path)], capture_output=True, text=True, timeout=300
    )
    assert (ended.stdout.strip(), ended.returncode) == ("4", 0), ended.stderr[-2000:]
