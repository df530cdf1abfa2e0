"""A run folder that somebody changed: resuming it is one sentence with the file in it, or just works."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sleuth.agent.loading import latest_checkpoint
from sleuth.cli.train import train as command
from sleuth.errors import InputError
from sleuth.runs.run import Run
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts, resume_run

Making = Callable[..., Parts]
UNASKED = {"before": False, "after": False}


def rewritten(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Changes the last row of a file of JSON, or its only document."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    row = json.loads(lines[-1])
    change(row)
    path.write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")


def metrics(**changed: object) -> Callable[[Path], None]:
    return lambda run: rewritten(run / "metrics.jsonl", lambda row: row.update(changed))


def manifest(**changed: object) -> Callable[[Path], None]:
    return lambda run: rewritten(run / "manifest.json", lambda row: row.update(changed))


def event(run: Path, **content: object) -> None:
    (run / "events.jsonl").write_text(json.dumps({"step": 1, "action": "warn", **content}) + "\n")


def in_the_way(path: Path) -> None:
    """Puts a file where a folder was, or a folder where a file was."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a row without its step": (metrics(step=None), "metrics.jsonl"),
    "a step that is text": (metrics(step="1"), "step = '1'"),
    "a metric that is text": (metrics(**{"policy/gradient_norm": "high"}), "policy/gradient_norm = 'high'"),
    "an event without its action": (lambda run: event(run, action=None), r"events.jsonl .* has no action"),
    "an event without its step": (lambda run: event(run, step=None), "events.jsonl, line 1 has step = None"),
    "an empty best.json": (lambda run: (run / "best.json").write_text("{}"), "best.json .* no step and score"),
    "a folder for the lock": (lambda run: in_the_way(run / "lock"), "cannot be written"),
    "a file for the trajectories": (lambda run: in_the_way(run / "trajectories"), "trajectories cannot be written"),
    "parts that are text": (manifest(parts="x"), "parts = 'x'"),
    "a part without its step": (manifest(parts=[{}]), "step"),
}


@pytest.fixture(scope="module")
def whole() -> dict[str, Path]:
    """The run of this module, made once."""
    return {}


@pytest.fixture
def run(whole: dict[str, Path], parts: Making, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run of one step."""
    if not whole:
        whole["run"] = tmp_path_factory.mktemp("whole") / "run"
        settings = {"steps": 1, "keep_best": True}
        train(parts(whole["run"], evaluate={**UNASKED, "every": 1}, train=settings), SilentObserver(), 0.0)
    shutil.copytree(whole["run"], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_sentence_that_names_it(damage: str, run: Path, parts: Making) -> None:
    harm, sentence = DAMAGE[damage]
    harm(run)
    settings = {"steps": 2, "keep_best": True, "save_every": 1}
    with pytest.raises(InputError, match=sentence) as refused:
        train(parts(run, evaluate={**UNASKED, "every": 1}, train=settings), SilentObserver(), 0.0)
    assert "\n" not in str(refused.value)


def test_folders_that_are_missing_are_made_again(run: Path, parts: Making) -> None:
    shutil.rmtree(run / "trajectories")
    train(parts(run, evaluate=UNASKED, train={"steps": 2}), SilentObserver(), 0.0)
    assert Run.open(run).trajectories(2).is_file()
    shutil.rmtree(run / "checkpoints")
    assert Run.open(run).checkpoints() == []
    with pytest.raises(InputError, match="has no checkpoint yet"):
        latest_checkpoint(Run.open(run))


@pytest.mark.parametrize("missing", ["config", "inputs"])
def test_manifest_without_its_tables_is_one_sentence(missing: str, run: Path) -> None:
    tables: dict[str, object] = {"config": {}, "inputs": {}}
    rewritten(run / "manifest.json", lambda row: row.update({**tables, missing: None}))
    for attempt in (lambda: command(resume=run), lambda: resume_run(Run.open(run), SilentObserver())):
        with pytest.raises(InputError, match=f"manifest.json is damaged: it has no {missing}"):
            attempt()
