"""From a recipe to a run folder and its parts: begun, killed, continued, or refused without a trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.agent.loading import load_run_agent
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, InputError
from sleuth.model.policy import Policy, select_dtype
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Progress, Saver
from sleuth.train.loop import train
from sleuth.train.manifest import record_resume
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts, resume_run, start_run
from sleuth.train.publish import CopiedWeights, SharedWeights, engine_policy

QUESTION = {"id": "q1", "question": "Where is Oslo?", "golden_answers": ["Norway"]}


class Stages:
    """A observer that remembers what it was told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.told: list[str] = []

    def begin(self, stage: str, total: int) -> None:
        self.begun.append(stage)

    def advance(self, parts: int = 1) -> None:
        """Not remembered."""

    def step(self, step: int, metrics: object) -> None:
        """Not remembered."""

    def log(self, line: str) -> None:
        self.told.append(line)


@pytest.fixture
def home(tmp_path: Path, policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model, a corpus and questions."""
    monkeypatch.chdir(tmp_path)
    policy().save(tmp_path / "model")
    Path("corpus.jsonl").write_text(json.dumps({"id": "p1", "contents": '"Oslo"\nOslo lies in Norway.'}) + "\n")
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text(json.dumps(QUESTION) + "\n")
    return tmp_path


def config(**tables: dict[str, Any]) -> Config:
    """A run on files given by relative paths."""
    files = {"corpus": "corpus.jsonl", "train": "train.jsonl", "test": "test.jsonl"}
    agent = {"prompt": "brief", "turn_tokens": 6, "context_tokens": 60}
    made: dict[str, Any] = {"model": {"policy": "model"}, "data": files, "agent": agent, "engine": {"slots": 2}}
    return Config.model_validate(made | tables)


def generated(**world: int) -> Config:
    tables = {"data": {}, "world": {"passages": 100, "questions": 5, **world}, "evaluate": {"questions": 3}}
    return config(**tables)


def begun(made: Config | None = None, observer: Stages | None = None) -> Parts:
    return start_run(made or config(), Path("run"), observer or SilentObserver())


def test_run_on_files_indexes_them_once(home: Path) -> None:
    stages = Stages()
    made = begun(observer=stages)
    assert [question.id for question in made.held_out] == ["q1"]
    again = resume_run(Run.open(made.run.path), stages)
    assert stages.begun == ["indexing"]
    assert again.config == made.config


@pytest.mark.parametrize(("asked", "known"), [("where is oslo", True), ("Who is Ada?", False)])
def test_held_out_questions_that_are_trained_on_are_told(asked: str, known: bool, home: Path) -> None:
    for name, question in {"train": "Where is Oslo?", "test": asked}.items():
        Path(f"{name}.jsonl").write_text(json.dumps(QUESTION | {"question": question}) + "\n")
    observer = Stages()
    begun(observer=observer)
    assert any("1 of the 1 held-out questions are also in the training set" in line for line in observer.told) is known


def test_whether_the_run_repeats_is_told_at_its_start(home: Path) -> None:
    observer = Stages()
    begun(observer=observer)
    (line,) = (line for line in observer.told if line.startswith("lockstep"))
    assert line.startswith("lockstep on (every tool answers in this process), at most 2 episodes in flight")
    assert "may not" not in line


def test_run_in_a_world_generates_it_once(home: Path) -> None:
    stages = Stages()
    made = begun(generated(), stages)
    assert len(made.held_out) == 3
    assert len(made.sampler.stream.questions) == 5
    resume_run(Run.open(made.run.path), stages)
    assert stages.begun == ["generating the world", "indexing"]


def test_run_with_an_index_of_its_own_builds_none(home: Path) -> None:
    built = begun().run.path / "index"
    stages = Stages()
    own = config(data={"train": "train.jsonl", "test": "test.jsonl"}, retrieval={"index": str(built.relative_to("."))})
    start_run(own, Path("second"), stages)
    assert stages.begun == []
    assert not Path("second/index").exists()


@pytest.mark.parametrize("left", [".tmp-world", ".tmp-index", "checkpoints/.tmp-step-1"])
def test_run_killed_before_its_first_checkpoint_starts_over(left: str, home: Path) -> None:
    made = begun(generated())
    (made.run.path / left).mkdir()
    with resume_run(Run.open(made.run.path), SilentObserver()).run.lock():
        assert not (made.run.path / left).exists()


def test_run_is_continued_and_asked_from_another_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun()
    with Saver(made.run, 1) as saver:
        saver.save(made.learner.policy, made.learner.optimiser, Progress(1, 0.0, 0))
    monkeypatch.chdir("/")
    again = resume_run(Run.open(home / "run"), SilentObserver())
    assert again.config.model.policy == str(home / "model")
    for initial in (True, False):
        assert load_run_agent(Run.open(home / "run"), initial).config == made.config.agent


def test_run_without_checkpoint_has_nothing_to_ask(home: Path) -> None:
    made = begun()
    with pytest.raises(InputError, match="has no checkpoint yet; continue it with: sleuth train --resume run"):
        load_run_agent(made.run)


def test_manifest_names_the_inputs_by_content(home: Path) -> None:
    inputs = begun().run.manifest()["inputs"]
    assert set(inputs) == {"model.policy", "data.corpus", "data.train", "data.test"}
    assert all(len(each["sha256"]) == 64 for each in inputs.values())
    assert inputs["data.train"]["sha256"] == inputs["data.test"]["sha256"] != inputs["data.corpus"]["sha256"]


@pytest.mark.parametrize(
    ("path", "knob"),
    [("train.jsonl", "data.train"), ("corpus.jsonl", "data.corpus"), ("model/config.json", "model.policy")],
)
def test_changed_input_is_not_continued(path: str, knob: str, home: Path) -> None:
    made = begun()
    with Path(path).open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=rf"{knob} = .* has changed"):
        resume_run(Run.open(made.run.path), SilentObserver())


def test_engine_generates_on_the_parameters_that_learn_unless_it_is_ahead(home: Path) -> None:
    together = start_run(config(), Path("together"), SilentObserver())
    train, algorithm = {"mode": "ahead"}, {"correction": {"level": "token"}}
    apart = start_run(config(train=train, algorithm=algorithm), Path("apart"), SilentObserver())
    assert (type(together.publisher), type(apart.publisher)) == (SharedWeights, CopiedWeights)
    assert engine_policy(together.config, together.learner) is together.learner.policy
    learning, generating = apart.learner.policy, engine_policy(apart.config, apart.learner)
    pairs = zip(learning.model.parameters(), generating.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr() for ours, theirs in pairs)


def test_critic_begins_as_the_policy_or_another_model(home: Path, policy: Callable[..., Policy]) -> None:
    policy(3).save(home / "other")
    models = {"model": {}, "other": {"policy": "other"}}
    for number, (folder, critic) in enumerate(models.items()):
        settings = {"advantage": "gae", "critic": critic}
        made = start_run(config(algorithm=settings), Path(f"run-{number}"), SilentObserver()).learner.critic
        assert made is not None
        expected = Policy.load(home / folder, torch.device("cpu")).model.base_model.state_dict()
        found = made.body.model.base_model.state_dict()
        assert all(torch.equal(found[name], each) for name, each in expected.items())
    assert start_run(config(), Path("without"), SilentObserver()).learner.critic is None


def test_half_precision_is_for_gpus(home: Path) -> None:
    asked = config(model={"policy": "model", "dtype": "bfloat16"})
    with pytest.raises(ConfigError, match=r"model\.dtype = bfloat16 needs a GPU"):
        select_dtype(asked.model, torch.device("cpu"))
    assert select_dtype(asked.model, torch.device("cuda")) is torch.bfloat16
    assert select_dtype(config().model, torch.device("cpu")) is torch.float32
    assert select_dtype(config().model, torch.device("cuda")) is torch.bfloat16


def test_run_goes_on_with_what_may_change_and_remembers_it(home: Path) -> None:
    made = begun()
    made.run.write_summary({"steps": 3})
    longer = resume_run(Run.open(made.run.path), SilentObserver(), ["train.steps=7"])
    assert "changes" not in made.run.manifest(), "nothing changes before the run is held"
    with longer.open():
        record_resume(longer.run, longer.config, 0, longer.changes, longer.versions)
        assert made.run.summary() is None, "a run that goes on is not finished"
    again = resume_run(Run.open(made.run.path), SilentObserver(), ["guards.non_finite=stop"])
    with again.open():
        record_resume(again.run, again.config, 0, again.changes, again.versions)
    assert (again.config.train.steps, again.config.guards.non_finite) == (7, "stop")
    assert made.run.manifest()["changes"] == ["train.steps=7", "guards.non_finite=stop"]
    assert resume_run(Run.open(made.run.path), SilentObserver()).config == again.config
    with pytest.raises(ConfigError, match=r"train\.samples cannot change"):
        resume_run(Run.open(made.run.path), SilentObserver(), ["train.samples=2"])


def test_parts_of_a_run_made_by_other_versions_are_recorded_and_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(home)
    function = home / "judge_of_parts.py"
    function.write_text("def paid(question, trajectory):\n    return 1.0\n")
    made = begun(config(reward={"answer": "import:judge_of_parts.paid"}))
    (first,) = made.run.manifest()["parts"]
    assert (first["step"], first["torch"], list(first["functions"])) == (0, torch.__version__, ["reward.answer"])
    same = Stages()
    assert resume_run(Run.open(made.run.path), same).versions is None
    assert not any("other versions" in line for line in same.told)
    # The run was begun by another torch, and the function was edited since.
    made.run.record_versions(0, {**first, "torch": "2.0"})
    function.write_text("def paid(question, trajectory):\n    return 0.5\n")
    with Saver(made.run, 1) as saver:
        saver.save(made.learner.policy, made.learner.optimiser, Progress(4))
    stages = Stages()
    again = resume_run(Run.open(made.run.path), stages)
    told = next(line for line in stages.told if "other versions" in line)
    assert f"from step 4 on this run uses other versions: torch 2.0 is now {torch.__version__}" in told
    assert "the function of reward.answer changed" in told
    record_resume(again.run, again.config, 4, again.changes, again.versions)
    parts = made.run.manifest()["parts"]
    assert [(each["step"], each["torch"]) for each in parts] == [(0, "2.0"), (4, torch.__version__)]
    made.run.rewind(2)
    assert [each["step"] for each in made.run.manifest()["parts"]] == [0, 2], "a rollback gives its steps to the newest"
    made.run.rewind(0)
    assert [each["torch"] for each in made.run.manifest()["parts"]] == [torch.__version__]


FAULTS: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "missing questions": (
        {"data": {"corpus": "corpus.jsonl", "train": "no.jsonl", "test": "test.jsonl"}},
        "data.train = .*no.jsonl does not exist",
    ),
    "missing model": ({"model": {"policy": "no-model"}}, "no model folder at .*no-model"),
    "empty corpus": (
        {"data": {"corpus": "empty.jsonl", "train": "train.jsonl", "test": "test.jsonl"}},
        "the corpus .*empty.jsonl is empty",
    ),
    "question without answer": (
        {"data": {"corpus": "corpus.jsonl", "train": "train.jsonl", "test": "bare.jsonl"}},
        "bare.jsonl, line 1: .*answer",
    ),
    "no questions": (
        {"data": {"corpus": "corpus.jsonl", "train": "empty.jsonl", "test": "test.jsonl"}},
        "empty.jsonl holds no questions",
    ),
    "corpus is no index": (
        {"data": {"train": "train.jsonl", "test": "test.jsonl"}, "retrieval": {"index": "model"}},
        "model is not an index folder",
    ),
    "unknown advantage": ({"algorithm": {"advantage": "gppo"}}, "algorithm.advantage = 'gppo' is unknown"),
    "PPO by another name": ({"algorithm": {"advantage": "ppo"}}, "expected .*reinforce_pp, gae or import"),
    "critic with other tokens": (
        {"algorithm": {"advantage": "gae", "critic": {"policy": "quickstart"}}},
        "algorithm.critic.policy = quickstart .* model.policy",
    ),
    "unknown reward": ({"reward": {"answer": "exact"}}, "reward.answer = 'exact' is unknown"),
    "unknown protocol": ({"agent": {"protocol": "tag", "context_tokens": 64}}, "agent.protocol = 'tag' is unknown"),
    "no chat template": (
        {"agent": {"protocol": "tools", "context_tokens": 64}},
        "agent.protocol = tools .* chat template",
    ),
    "no pages": (
        {"agent": {"protocol": "tools-access", "context_tokens": 64}, "retrieval": {"pages": "none.jsonl"}},
        "retrieval.pages = .*none.jsonl does not exist",
    ),
    "unknown prompt": ({"agent": {"prompt": "long", "context_tokens": 64}}, "agent.prompt"),
    "context too long": ({"agent": {"context_tokens": 99_999}}, "agent.context_tokens = 99999 .* 512"),
}


@pytest.mark.parametrize(("tables", "sentence"), FAULTS.values(), ids=FAULTS)
def test_run_that_cannot_start_leaves_no_folder(tables: dict[str, Any], sentence: str, home: Path) -> None:
    Path("empty.jsonl").write_text("\n")
    Path("bare.jsonl").write_text(json.dumps({**QUESTION, "golden_answers": []}) + "\n")
    before = sorted(home.iterdir())
    with pytest.raises((ConfigError, InputError), match=sentence) as caught:
        begun(config(**tables))
    assert "\n" not in str(caught.value)
    assert sorted(home.iterdir()) == before


def test_folder_that_exists_is_left_as_it_is(home: Path) -> None:
    Path("run").mkdir()
    Path("run/mine.txt").write_text("precious")
    with pytest.raises(InputError, match="run already exists"):
        begun()
    assert [path.name for path in Path("run").iterdir()] == ["mine.txt"]


POOL = """
import asyncio
from sleuth.agent.episode import multi_turn
pools = {}

async def run(agent, task, session, hear):
    workers = pools.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(2))
    await asyncio.wait_for(workers.acquire(), 20)
    try:
        return await multi_turn(agent, task, agent.conversation(session, hear))
    finally:
        workers.release()
"""


def test_method_whose_episodes_share_fewer_workers_than_slots_runs_to_its_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pool_of_two.py").write_text(POOL)
    monkeypatch.syspath_prepend(home)
    agent = {"prompt": "brief", "method": "import:pool_of_two.run", "turn_tokens": 6, "context_tokens": 60}
    made = config(
        agent=agent,
        engine={"slots": 4},
        train={"steps": 1, "questions": 1, "samples": 4},
        evaluate={"before": False, "after": False},
    )
    observer = Stages()
    parts = begun(made, observer)
    train(parts, observer, 0.0)
    assert [row["step"] for row in parts.run.metrics()] == [0, 1]
    assert any(line.startswith("lockstep off (agent.method = import:pool_of_two.run") for line in observer.told)
